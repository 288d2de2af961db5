variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false
}

variable "node_type" {
  description = "Node type that Ray sees: head, or the name of a pool."
  type        = string
  nullable    = false
}

variable "extras" {
  description = "Extras with which the wheel is installed, separated by commas; empty: none, and PyTorch's builds for CPUs."
  type        = string
  nullable    = false
}

variable "node" {
  description = "What a node must know of its cluster."
  type = object({
    region               = string
    config_bucket        = string
    ray_token_secret_arn = string
    wheel_key            = string
    log_group            = string
  })
  nullable = false

  validation {
    condition     = can(regex("^[A-Za-z0-9._+/-]+/[A-Za-z0-9._+-]+\\.whl$", var.node.wheel_key))
    error_message = "wheel_key is the key of a wheel in a folder of the config bucket, with constraints.txt beside it: wheels/<hash>/headwater-0.1.0-py3-none-any.whl."
  }
}
