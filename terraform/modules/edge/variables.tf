variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "A cluster's name has 3 to 32 lower-case letters, digits and hyphens."
  }
}

variable "vpc_id" {
  description = "VPC of the nodes."
  type        = string
  nullable    = false
}

variable "public_subnets" {
  description = "Public subnet of each zone: a load balancer takes two at least."
  type        = map(string)
  nullable    = false

  validation {
    condition     = length(var.public_subnets) >= 2
    error_message = "A load balancer stands in two zones at least."
  }
}

variable "node_security_group_id" {
  description = "Security group of the nodes, which the load balancer may reach on Serve's port."
  type        = string
  nullable    = false
}

variable "serve_port" {
  description = "Port of Serve's proxy on nodes."
  type        = number
  default     = 8000
  nullable    = false

  validation {
    condition     = var.serve_port > 1023 && var.serve_port < 65536
    error_message = "serve_port is between 1024 and 65535."
  }
}

variable "certificate_arn" {
  description = "Certificate, in ACM, of the name that clients call."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^arn:aws[a-z-]*:acm:[a-z0-9-]+:[0-9]{12}:certificate/.+$", var.certificate_arn))
    error_message = "A certificate's ARN looks like arn:aws:acm:REGION:ACCOUNT:certificate/ID."
  }
}

variable "allowed_cidrs" {
  description = "IPv4 networks of clients; 0.0.0.0/0 is everybody."
  type        = set(string)
  nullable    = false

  validation {
    condition     = length(var.allowed_cidrs) > 0 && alltrue([for cidr in var.allowed_cidrs : can(cidrnetmask(cidr))])
    error_message = "allowed_cidrs is one IPv4 network or more, such as 203.0.113.0/24."
  }
}

variable "log_bucket" {
  description = "Bucket of access logs; they lie below alb/."
  type        = string
  nullable    = false
}

variable "kms_key_arn" {
  description = "Key that encrypts the firewall's log."
  type        = string
  nullable    = false
}

variable "requests_per_address" {
  description = "Requests that one client address may send in five minutes."
  type        = number
  default     = 10000
  nullable    = false

  validation {
    condition     = var.requests_per_address >= 10 && var.requests_per_address <= 2000000000
    error_message = "requests_per_address is between 10 and 2,000,000,000."
  }
}

variable "idle_timeout_s" {
  description = "How long an answer may send nothing."
  type        = number
  default     = 3600
  nullable    = false

  validation {
    condition     = var.idle_timeout_s >= 60 && var.idle_timeout_s <= 4000
    error_message = "idle_timeout_s is between 60 and 4000."
  }
}

variable "deletion_protection" {
  description = "Whether destroy refuses to delete the load balancer."
  type        = bool
  default     = true
  nullable    = false
}

variable "log_retention_days" {
  description = "Days that the firewall's log is kept."
  type        = number
  default     = 365
  nullable    = false
}
