variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "A cluster's name has 3 to 32 lower-case letters, digits and hyphens."
  }
}

variable "kms_key_arn" {
  description = "Key that encrypts what is stored here."
  type        = string
  nullable    = false
}

