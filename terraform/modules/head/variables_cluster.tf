variable "node" {
  description = "What a node must know of its cluster."
  type = object({
    region               = string
    config_bucket        = string
    weights_bucket       = string
    ray_token_secret_arn = string
    head_address         = string
    ray_port             = number
    wheel_key            = string
    log_group            = string
    events_queue_url     = string
  })
  nullable = false
}

variable "node_types" {
  description = "Workers of each pool: outputs node_type of the module gpu_pool."
  type = map(object({
    resources   = map(number)
    labels      = map(string)
    min_workers = number
    max_workers = number
    node_config = object({
      offers = list(object({
        market          = string
        launch_template = object({ id = string, version = string })
        instance_types  = list(string)
        subnets         = map(string)
      }))
    })
  }))
  nullable = false

  validation {
    condition     = !contains(keys(var.node_types), "head")
    error_message = "\"head\" is the head's own node type: give the pool another name."
  }
}

variable "num_max_workers" {
  description = "Most workers of all pools together."
  type        = number
  nullable    = false

  validation {
    condition     = var.num_max_workers >= 0 && floor(var.num_max_workers) == var.num_max_workers
    error_message = "num_max_workers is a whole number, 0 or more."
  }
}

variable "idle_timeout_s" {
  description = "How long a worker does nothing before Ray drains and ends it."
  type        = number
  default     = 300
  nullable    = false

  validation {
    condition     = var.idle_timeout_s >= 1
    error_message = "idle_timeout_s is 1 or more."
  }
}
