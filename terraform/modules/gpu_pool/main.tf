# What each market of the pool needs to be asked with, and the answer for Ray's autoscaler file.

data "aws_ec2_instance_type" "this" {
  for_each = toset(var.instance_types)

  instance_type = each.value
}

locals {
  num_gpus = {
    for type, facts in data.aws_ec2_instance_type.this :
    type => sum(concat([0], [for gpu in facts.gpus : gpu.count]))
  }

  # A template has one layout of network cards: types with other cards need another template.
  layouts = {
    for type, facts in data.aws_ec2_instance_type.this : type => {
      name = var.efa ? "${facts.maximum_network_cards}-cards" : "plain"
      # Without EFA, further cards bring nothing that one interface would use.
      num_cards = var.efa ? max(facts.maximum_network_cards, 1) : 1
      # Some types have one adapter less than cards: their first card is for IP alone.
      efa_on_first = var.efa && facts.efa_maximum_interfaces >= facts.maximum_network_cards
    }
  }

  # A cluster placement group lies in one zone, so does each of its offers.
  places = var.efa ? { for zone, subnet in var.subnets : zone => { (zone) = subnet } } : { any = var.subnets }

  open_requests = [
    for offer in var.markets : contains(["spot", "on-demand"], offer.market) ? flatten([
      for layout in distinct([for type in var.instance_types : local.layouts[type]]) : [
        for place, subnets in local.places : {
          market         = offer.market
          template       = var.efa ? "open-${layout.name}-${place}" : "open"
          instance_types = [for type in var.instance_types : type if local.layouts[type] == layout]
          subnets        = subnets
          layout         = layout
          placement_zone = var.efa ? place : null
          reservation_id = null
        }
      ]
    ]) : []
  ]

  # Reserved capacity is of one type, and lies where it was reserved: in no group of ours.
  reserved_requests = [
    for index, offer in var.markets : contains(["spot", "on-demand"], offer.market) ? [] : [{
      market         = offer.market
      template       = "${offer.market}-${index}"
      instance_types = [coalesce(offer.instance_type, var.instance_types[0])]
      subnets        = { (offer.zone) = var.subnets[offer.zone] }
      layout         = local.layouts[coalesce(offer.instance_type, var.instance_types[0])]
      placement_zone = null
      reservation_id = offer.reservation_id
    }]
  ]

  requests  = flatten([for index, _ in var.markets : concat(local.reserved_requests[index], local.open_requests[index])])
  templates = { for key, requests in { for request in local.requests : request.template => request... } : key => requests[0] }

  resources = merge({ CPU = var.num_cpus }, var.num_devices > 0 ? { GPU = var.num_devices } : {})

  offers = [
    for request in local.requests : {
      market = request.market
      launch_template = {
        id      = aws_launch_template.this[request.template].id
        version = tostring(aws_launch_template.this[request.template].latest_version)
      }
      instance_types = request.instance_types
      subnets        = request.subnets
    }
  ]
}

check "cpus" {
  assert {
    condition     = alltrue([for facts in data.aws_ec2_instance_type.this : facts.default_vcpus >= var.num_cpus])
    error_message = "Pool ${var.pool}: num_cpus is more than the vCPUs of some of its instance types."
  }
}

check "kept_nodes" {
  assert {
    condition     = var.min_nodes == 0 || anytrue([for offer in var.markets : offer.market != "spot"])
    error_message = "Pool ${var.pool} keeps min_nodes, but asks only the spot market, which may refuse or take back all of them."
  }
}

check "order_of_markets" {
  assert {
    condition     = !contains(var.markets[*].market, "on-demand") || var.markets[length(var.markets) - 1].market == "on-demand"
    error_message = "Pool ${var.pool}: what comes after on-demand is hardly ever asked. Name on-demand last."
  }
}
