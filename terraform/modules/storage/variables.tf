variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "A cluster's name has 3 to 32 lower-case letters, digits and hyphens."
  }
}

variable "models" {
  description = "Names of models, which are the first part of their objects' keys in the weights bucket, that are replicated; none: all are."
  type        = list(string)
  default     = []
  nullable    = false

  validation {
    condition     = alltrue([for model in var.models : can(regex("^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", model))])
    error_message = "A model's name begins with a letter or digit and has letters, digits, dots, underscores and hyphens, at most 128."
  }

  validation {
    condition     = length(distinct(var.models)) == length(var.models) && length(var.models) <= 1000
    error_message = "Name each model once, and no more than 1000: S3 takes as many rules of replication."
  }
}

variable "force_destroy" {
  description = "Whether destroy deletes the buckets with all that is in them and the secret at once. For clusters that are thrown away."
  type        = bool
  default     = false
  nullable    = false
}

variable "lifecycle_rules" {
  description = "Whether the buckets have lifecycle rules: they end uploads that were left off, and delete old versions and old logs."
  type        = bool
  default     = true
  nullable    = false
}

variable "replication" {
  description = "Weights bucket of a cluster in another region, and that region's key, to which models are copied; null: nowhere."
  type = object({
    bucket_arn  = string
    kms_key_arn = string
  })
  default = null

  validation {
    condition     = var.replication == null ? true : can(regex("^arn:[a-z-]+:s3:::[a-z0-9.-]{3,63}$", var.replication.bucket_arn))
    error_message = "replication.bucket_arn names a bucket, like arn:aws:s3:::river-weights-0123456789ab."
  }

  validation {
    condition     = var.replication == null ? true : can(regex("^arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/[0-9a-f-]+$", var.replication.kms_key_arn))
    error_message = "replication.kms_key_arn names a key, not an alias, like arn:aws:kms:us-west-2:123456789012:key/..."
  }
}

variable "log_retention_days" {
  description = "Days for which logs are kept, of those that CloudWatch offers."
  type        = number
  default     = 365
  nullable    = false

  validation {
    condition     = contains([7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653], var.log_retention_days)
    error_message = "CloudWatch keeps logs for 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288 or 3653 days."
  }
}
