variable "efa" {
  description = "Whether nodes have Elastic Fabric Adapters on all network cards and lie close together."
  type        = bool
  default     = false
  nullable    = false
}

variable "subnets" {
  description = "Private subnet of each zone."
  type        = map(string)
  nullable    = false

  validation {
    condition     = length(var.subnets) > 0
    error_message = "A pool needs a subnet in at least one zone."
  }
}

variable "security_group_ids" {
  description = "Security groups of the nodes."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.security_group_ids) > 0
    error_message = "Name the nodes' security group: the VPC's default group lets nobody in."
  }
}

variable "instance_profile_arn" {
  description = "Instance profile of the workers."
  type        = string
  nullable    = false
}

variable "ami_id" {
  description = "Image of the nodes (terraform/images/build.sh makes one); null: the newest AWS Deep Learning Base AMI, on which every node installs at its start."
  type        = string
  default     = null

  validation {
    condition     = var.ami_id == null ? true : can(regex("^ami-[0-9a-f]+$", var.ami_id))
    error_message = "An image's id looks like ami-0123456789abcdef0."
  }
}

variable "kms_key_arn" {
  description = "Key that encrypts the volumes."
  type        = string
  nullable    = false
}

variable "volume_gb" {
  description = "Size of the root volume. Weights and KV lie on instance storage where there is some, else here."
  type        = number
  default     = 200
  nullable    = false

  validation {
    condition     = var.volume_gb >= 100 && var.volume_gb <= 16384
    error_message = "volume_gb is between 100 (image and packages) and 16384."
  }
}

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
