variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "A cluster's name has 3 to 32 lower-case letters, digits and hyphens."
  }
}

variable "subnets" {
  description = "Private subnet of each zone in which the head may start."
  type        = map(string)
  nullable    = false

  validation {
    condition     = length(var.subnets) > 0
    error_message = "The head needs a subnet in at least one zone."
  }
}

variable "security_group_ids" {
  description = "Security groups of the head."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.security_group_ids) > 0
    error_message = "Name the nodes' security group: the VPC's default group lets nobody in."
  }
}

variable "instance_profile_arn" {
  description = "Instance profile of the head."
  type        = string
  nullable    = false
}

variable "instance_types" {
  description = "Instance types in the order of preference."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.instance_types) > 0 && length(distinct(var.instance_types)) == length(var.instance_types)
    error_message = "Name at least one instance type, and each one once."
  }
}

variable "ami_id" {
  description = "Image of the head (terraform/images/build.sh makes one); null: the newest AWS Deep Learning Base AMI, on which the head installs at its start."
  type        = string
  default     = null

  validation {
    condition     = var.ami_id == null ? true : can(regex("^ami-[0-9a-f]+$", var.ami_id))
    error_message = "An image's id looks like ami-0123456789abcdef0."
  }
}

variable "kms_key_arn" {
  description = "Key that encrypts the volumes, the cluster's files and MemoryDB."
  type        = string
  nullable    = false
}

variable "volume_gb" {
  description = "Size of the root volume."
  type        = number
  default     = 200
  nullable    = false

  validation {
    condition     = var.volume_gb >= 100 && var.volume_gb <= 16384
    error_message = "volume_gb is between 100 (image and packages) and 16384."
  }
}

variable "head_service_id" {
  description = "Cloud Map service under which the head registers its address."
  type        = string
  nullable    = false
}

variable "target_group_arns" {
  description = "Target groups of load balancers in front of Serve."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "memory_db" {
  description = "MemoryDB that keeps Ray's tables when the head is replaced; null: a new head starts empty and deploys again."
  type = object({
    vpc_id    = string
    subnets   = map(string)
    node_type = string
  })
  default = null
}
