variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "A cluster's name has 3 to 32 lower-case letters, digits and hyphens."
  }
}

variable "cidr" {
  description = "Addresses of the VPC: a private /16 to /19. Each zone gets a sixteenth of it for nodes, and a 256th for load balancers."
  type        = string
  default     = "10.40.0.0/16"
  nullable    = false

  validation {
    condition     = can(cidrnetmask(var.cidr)) && try(cidrhost(var.cidr, 0) == split("/", var.cidr)[0], false)
    error_message = "cidr is the first address of a block and its length, like 10.40.0.0/16."
  }

  validation {
    condition     = try(tonumber(split("/", var.cidr)[1]) >= 16 && tonumber(split("/", var.cidr)[1]) <= 19, false)
    error_message = "cidr is a /16 to /19: AWS takes nothing larger, and in a smaller one a load balancer has too few addresses."
  }

  validation {
    condition     = can(regex("^(10\\.|172\\.(1[6-9]|2[0-9]|3[01])\\.|192\\.168\\.)", var.cidr))
    error_message = "cidr lies in 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16: other addresses belong to somebody."
  }
}

variable "zones" {
  description = "Availability zones of one region, 2 to 6. Their order gives each its addresses: add new ones at the end."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.zones) >= 2 && length(var.zones) <= 6 && length(distinct(var.zones)) == length(var.zones)
    error_message = "Name 2 to 6 zones, each one once: a load balancer needs two."
  }

  validation {
    condition     = alltrue([for zone in var.zones : can(regex("^[a-z]{2}(-[a-z]+)+-[0-9][a-z]$", zone))])
    error_message = "A zone is a region and a letter, like us-east-1a."
  }

  validation {
    condition     = length(distinct([for zone in var.zones : trimsuffix(zone, substr(zone, -1, 1))])) <= 1
    error_message = "All zones are of one region."
  }
}

variable "nat_per_zone" {
  description = "Whether each zone has a NAT gateway of its own, so that none depends on another zone; else one serves all."
  type        = bool
  default     = true
  nullable    = false
}

variable "flow_log_kms_key_arn" {
  description = "Key that encrypts the flow logs, which CloudWatch may use for log groups below /headwater/NAME."
  type        = string
  nullable    = false
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
