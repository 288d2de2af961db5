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
  description = "Key that encrypts the images."
  type        = string
  nullable    = false
}

variable "force_destroy" {
  description = "Whether destroy deletes the repository with its images."
  type        = bool
  default     = false
  nullable    = false
}

variable "num_images" {
  description = "Images that are kept: older ones are deleted."
  type        = number
  default     = 20
  nullable    = false

  validation {
    condition     = var.num_images >= 1 && floor(var.num_images) == var.num_images
    error_message = "num_images is a whole number, 1 or more."
  }
}
