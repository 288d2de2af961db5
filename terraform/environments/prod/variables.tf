variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "name: a cluster's name has 3 to 32 lower-case letters, digits and hyphens."
  }
}

variable "region" {
  description = "Region of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z]{2,}(-[a-z]+)+-[0-9]$", var.region))
    error_message = "region: a region's name looks like us-east-1."
  }
}

variable "zones" {
  description = "Zones of the cluster, two or three: those in which the pools' instance types are to be had."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(distinct(var.zones)) == length(var.zones) && length(var.zones) >= 2 && length(var.zones) <= 3
    error_message = "zones: two or three different zones."
  }

  validation {
    condition     = alltrue([for zone in var.zones : startswith(zone, var.region)])
    error_message = "zones: all of the region, such as ${var.region}a."
  }
}

variable "cidr" {
  description = "Private network of the VPC."
  type        = string
  default     = "10.40.0.0/16"
  nullable    = false

  validation {
    condition     = can(cidrnetmask(var.cidr))
    error_message = "cidr: an IPv4 network such as 10.40.0.0/16."
  }
}

variable "nat_per_zone" {
  description = "Whether each zone has a NAT gateway of its own; else one serves all, and its zone's end is the way out's."
  type        = bool
  nullable    = false
}

variable "domain" {
  description = "Name that clients call, for which the certificate is."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^([a-z0-9-]+\\.)+[a-z]{2,}$", var.domain))
    error_message = "domain: a name such as llm.example.com."
  }
}

variable "certificate_arn" {
  description = "Certificate of the domain, in the region's ACM."
  type        = string
  nullable    = false
}

variable "allowed_cidrs" {
  description = "IPv4 networks of clients; 0.0.0.0/0 is everybody."
  type        = set(string)
  nullable    = false
}

variable "models" {
  description = "Folders of models in the weights bucket: those that replication copies."
  type        = list(string)
  default     = []
  nullable    = false
}

variable "alarm_emails" {
  description = "Who is told of alarms."
  type        = set(string)
  nullable    = false
}

variable "prometheus" {
  description = "Whether a workspace of Amazon's Prometheus is made."
  type        = bool
  default     = false
  nullable    = false
}

variable "replication" {
  description = "Weights bucket and key of a cluster in another region, to which models are copied; null: nowhere."
  type        = object({ bucket_arn = string, kms_key_arn = string })
  default     = null
}

variable "force_destroy" {
  description = "Whether destroy deletes buckets and images with all that is in them."
  type        = bool
  default     = false
  nullable    = false
}

variable "deletion_protection" {
  description = "Whether destroy refuses to delete the load balancer."
  type        = bool
  default     = true
  nullable    = false
}
