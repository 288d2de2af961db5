variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "A cluster's name has 3 to 32 lower-case letters, digits and hyphens."
  }
}

variable "region" {
  description = "Region of the cluster."
  type        = string
  nullable    = false
}

variable "kms_key_arn" {
  description = "Key that encrypts what is stored here."
  type        = string
  nullable    = false
}

variable "alb_arn_suffix" {
  description = "The load balancer, as CloudWatch names it."
  type        = string
  nullable    = false
}

variable "target_group_arn_suffix" {
  description = "Its target group of Serve's proxies, as CloudWatch names it."
  type        = string
  nullable    = false
}

variable "emails" {
  description = "Who is told of alarms. Each confirms by a link that AWS sends."
  type        = set(string)
  nullable    = false

  validation {
    condition     = alltrue([for email in var.emails : can(regex("^[^@\\s]+@[^@\\s]+\\.[^@\\s]+$", email))])
    error_message = "emails has addresses such as someone@example.com."
  }
}

variable "prometheus" {
  description = "Whether a workspace of Amazon's Prometheus is made, with alert rules; else bring your own."
  type        = bool
  nullable    = false
}

variable "ttft_target_s" {
  description = "Longest time to the first token that 99 of 100 requests may take."
  type        = number
  default     = 0.7
  nullable    = false

  validation {
    condition     = var.ttft_target_s > 0
    error_message = "ttft_target_s is above 0."
  }
}

variable "tpot_target_s" {
  description = "Longest time per output token that 99 of 100 requests may take."
  type        = number
  default     = 0.04
  nullable    = false

  validation {
    condition     = var.tpot_target_s > 0
    error_message = "tpot_target_s is above 0."
  }
}
