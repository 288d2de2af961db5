variable "head" {
  description = "The head: its instance types in the order of preference, and whether Ray's tables are kept in MemoryDB when it is replaced."
  type        = object({ instance_types = list(string), memory_db = bool })
  nullable    = false
}

variable "pools" {
  description = "Kinds of workers by name. The module gpu_pool explains each value."
  type = map(object({
    instance_types = list(string)
    num_devices    = number
    num_cpus       = number
    min_nodes      = number
    max_nodes      = number
    efa            = optional(bool, false)
    markets = list(object({
      market         = string
      reservation_id = optional(string)
      zone           = optional(string)
      instance_type  = optional(string)
    }))
  }))
  nullable = false

  validation {
    condition     = length(var.pools) > 0
    error_message = "pools: one at least."
  }
}

variable "idle_timeout_s" {
  description = "How long a worker does nothing before Ray drains and ends it."
  type        = number
  default     = 300
  nullable    = false
}

variable "ami_id" {
  description = "Image of all nodes (terraform/images/build.sh makes one); null: AWS's newest, on which nodes install at their start."
  type        = string
  default     = null
}

variable "wheel_path" {
  description = "This project's wheel on this machine, which is put into the config bucket (`pip wheel --no-deps --wheel-dir dist .`); null: it lies there, as wheel_key."
  type        = string
  default     = null

  validation {
    condition     = var.wheel_path == null ? true : endswith(var.wheel_path, ".whl") && fileexists(var.wheel_path)
    error_message = "wheel_path: there is no such wheel. Make one: pip wheel --no-deps --wheel-dir dist ."
  }
}

variable "wheel_key" {
  description = "Where in the config bucket the wheel lies, with constraints.txt beside it, where wheel_path is null."
  type        = string
  default     = "wheels/current/headwater-0.1.0-py3-none-any.whl"
  nullable    = false
}
