variable "name" {
  type        = string
  nullable    = false
  description = "Name of the RayService."

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "name must be 3 to 32 lower-case letters, digits and hyphens, and begin with a letter."
  }
}

variable "namespace" {
  type        = string
  nullable    = false
  default     = "headwater"
  description = "Namespace of the RayService, which the operator watches."

  validation {
    condition     = can(regex("^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$", var.namespace))
    error_message = "namespace must be a DNS label: at most 63 lower-case letters, digits and hyphens."
  }
}

variable "serve_file" {
  type        = string
  nullable    = false
  description = "Path of a YAML file as `serve run` takes it, such as configs/llama-70b-tp8.yaml."

  validation {
    condition     = can(yamldecode(file(var.serve_file)).applications[0].import_path)
    error_message = "serve_file must be a YAML file with at least one application that has an import_path."
  }
}

variable "image" {
  type        = string
  nullable    = false
  description = "Image of head and workers, with its tag or digest. It holds Headwater and Ray."

  validation {
    condition     = can(regex("^\\S+(:[^/\\s]+|@sha256:[0-9a-f]{64})$", var.image))
    error_message = "image must end in a tag or a digest, or nodes of one cluster may run different code."
  }
}

variable "ray_version" {
  type        = string
  nullable    = false
  default     = "2.60.0"
  description = "Ray in the image."

  validation {
    condition     = can(regex("^\\d+\\.\\d+\\.\\d+$", var.ray_version))
    error_message = "ray_version must have the form 2.60.0."
  }
}

variable "pools" {
  type = map(object({
    instance_types = list(string)
    min_nodes      = number
    max_nodes      = number
    num_devices    = number
    num_cpus       = number
    memory_gb      = optional(number)
    node_selector  = optional(map(string), {})
    tolerations = optional(list(object({
      key      = string
      operator = optional(string, "Exists")
      value    = optional(string)
      effect   = optional(string, "NoSchedule")
    })))
  }))
  nullable    = false
  description = "Worker groups, in the shape of an environment's cluster.auto.tfvars.json; markets are the node groups' business."

  validation {
    condition     = length(var.pools) > 0 && alltrue([for name in keys(var.pools) : can(regex("^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$", name))])
    error_message = "pools needs at least one, each named by lower-case letters, digits and hyphens."
  }

  validation {
    condition = alltrue([
      for pool in var.pools :
      pool.min_nodes >= 0 && pool.max_nodes >= pool.min_nodes && pool.num_devices >= 0 && pool.num_cpus > 0 && length(pool.instance_types) > 0
    ])
    error_message = "Every pool needs an instance type, 0 <= min_nodes <= max_nodes, num_devices of 0 or more and num_cpus above 0."
  }
}

variable "token_secret" {
  type        = string
  nullable    = false
  default     = "ray-token"
  description = "Kubernetes secret with Ray's token under the key auth_token."
}

variable "redis" {
  type        = object({ address = string, password_secret = string, password_key = optional(string, "password") })
  default     = null
  description = "Where the head keeps its state, so that a new head goes on with it; null: it doesn't."
}

variable "nvme_path" {
  type        = string
  default     = null
  description = "Folder of the node's NVMe disks, mounted as HEADWATER_HOME; null: an emptyDir, which goes with the pod."

  validation {
    condition     = var.nvme_path == null || can(regex("^/[^/]", var.nvme_path))
    error_message = "nvme_path must be an absolute path below /."
  }
}

variable "termination_grace_s" {
  type        = number
  nullable    = false
  default     = 600
  description = "Seconds that a pod has to finish its answers when it is told to end."

  validation {
    condition     = var.termination_grace_s >= 60 && var.termination_grace_s <= 7200
    error_message = "termination_grace_s must be from 60 to 7200."
  }
}

variable "idle_timeout_s" {
  type        = number
  nullable    = false
  default     = 300
  description = "Seconds after which the autoscaler gives an idle worker back."

  validation {
    condition     = var.idle_timeout_s >= 0
    error_message = "idle_timeout_s must be 0 or more."
  }
}
