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
  description = "Region of the cluster: what nodes may do, they may do there."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]{2}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "A region's name is like us-east-1, without a zone's letter."
  }
}

variable "weights_bucket_arn" {
  description = "Bucket of the models, which nodes read."
  type        = string
  nullable    = false
}

variable "config_bucket_arn" {
  description = "Bucket of what is deployed, which nodes read and the head writes in part."
  type        = string
  nullable    = false
}

variable "kms_key_arn" {
  description = "Key with which all of the cluster is encrypted."
  type        = string
  nullable    = false
}

variable "ray_token_secret_arn" {
  description = "Secret of Ray's token: nodes read it, the head makes it."
  type        = string
  nullable    = false
}

variable "events_queue_arn" {
  description = "Queue of events, which the head reads."
  type        = string
  nullable    = false
}

variable "log_group_arn" {
  description = "Log group of the nodes, to which they write."
  type        = string
  nullable    = false
}

variable "head_service_arn" {
  description = "Cloud Map service under which the head registers."
  type        = string
  nullable    = false
}

variable "namespace_zone_id" {
  description = "Route 53 zone of the service's namespace."
  type        = string
  nullable    = false
}

variable "repository_arn" {
  description = "Repository of images, which nodes pull."
  type        = string
  nullable    = false
}
