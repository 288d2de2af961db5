variable "name" {
  description = "Name of the cluster."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}[a-z0-9]$", var.name))
    error_message = "A cluster's name has 3 to 32 lower-case letters, digits and hyphens."
  }
}

variable "pool" {
  description = "Name of the pool: the node type that Ray sees, and the value of the label headwater.pool."
  type        = string
  nullable    = false

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{0,30}$", var.pool)) && var.pool != "head"
    error_message = "A pool's name has 1 to 31 lower-case letters, digits and hyphens, and is not \"head\"."
  }
}

variable "instance_types" {
  description = "Instance types in the order of preference. All have the same number of GPUs."
  type        = list(string)
  nullable    = false

  validation {
    condition     = length(var.instance_types) > 0 && length(distinct(var.instance_types)) == length(var.instance_types)
    error_message = "Name at least one instance type, and each one once."
  }
}

variable "num_devices" {
  description = "GPUs of a node; 0 for a pool without."
  type        = number
  nullable    = false

  validation {
    condition     = var.num_devices >= 0 && floor(var.num_devices) == var.num_devices
    error_message = "num_devices is a whole number, 0 or more."
  }
}

variable "num_cpus" {
  description = "CPUs of a node that Ray may give away."
  type        = number
  nullable    = false

  validation {
    condition     = var.num_cpus >= 1 && floor(var.num_cpus) == var.num_cpus
    error_message = "num_cpus is a whole number, 1 or more."
  }
}

variable "min_nodes" {
  description = "Nodes that Ray keeps even when nobody asks."
  type        = number
  nullable    = false

  validation {
    condition     = var.min_nodes >= 0 && floor(var.min_nodes) == var.min_nodes
    error_message = "min_nodes is a whole number, 0 or more."
  }
}

variable "max_nodes" {
  description = "Most nodes of the pool."
  type        = number
  nullable    = false

  validation {
    condition     = var.max_nodes >= max(var.min_nodes, 1) && floor(var.max_nodes) == var.max_nodes
    error_message = "max_nodes is a whole number, 1 or more, and not below min_nodes."
  }
}

variable "markets" {
  description = "Where capacity comes from, in the order in which it is tried. A capacity block or a reservation names its id, its zone and, unless it is the pool's first, its instance type."
  type = list(object({
    market         = string
    reservation_id = optional(string)
    zone           = optional(string)
    instance_type  = optional(string)
  }))
  nullable = false

  validation {
    condition     = length(var.markets) > 0
    error_message = "Name at least one market: capacity-block, reservation, spot or on-demand."
  }

  validation {
    condition     = alltrue([for offer in var.markets : contains(["capacity-block", "reservation", "spot", "on-demand"], offer.market)])
    error_message = "A market is one of capacity-block, reservation, spot and on-demand."
  }

  validation {
    condition = alltrue([
      for offer in var.markets : contains(["spot", "on-demand"], offer.market)
      ? offer.reservation_id == null && offer.zone == null && offer.instance_type == null
      : can(regex("^cr-[0-9a-f]+$", offer.reservation_id)) && offer.zone != null
    ])
    error_message = "A capacity-block or reservation needs reservation_id (cr-...) and zone; spot and on-demand take neither."
  }

  validation {
    condition     = alltrue([for offer in var.markets : offer.zone == null ? true : contains(keys(var.subnets), offer.zone)])
    error_message = "A capacity block or reservation lies in a zone without a subnet: add the zone to the network, or take the offer out."
  }

  validation {
    condition     = alltrue([for offer in var.markets : offer.instance_type == null ? true : contains(var.instance_types, offer.instance_type)])
    error_message = "The instance type of a capacity block or reservation must be one of the pool's instance_types."
  }
}
