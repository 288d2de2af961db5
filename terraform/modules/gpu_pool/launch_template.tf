# Templates from which Ray's node provider launches: one for each way to be asked.

data "aws_ssm_parameter" "image" {
  count = var.ami_id == null ? 1 : 0

  name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
}

data "aws_default_tags" "current" {}

locals {
  # A template's tags for what is launched get no default tags from the provider.
  tags = merge(data.aws_default_tags.current.tags, {
    Name             = "${var.name}-${var.pool}"
    ray-cluster-name = var.name
    headwater-pool   = var.pool
  })
}

resource "aws_placement_group" "this" {
  for_each = toset([for request in values(local.templates) : request.placement_zone if request.placement_zone != null])

  name     = "${var.name}-${var.pool}-${each.value}"
  strategy = "cluster"
  tags     = { ray-cluster-name = var.name }
}

resource "aws_launch_template" "this" {
  for_each = local.templates

  name                                 = "${var.name}-${var.pool}-${each.key}"
  description                          = "Workers of pool ${var.pool}: ${each.key}."
  image_id                             = var.ami_id == null ? data.aws_ssm_parameter.image[0].insecure_value : var.ami_id
  user_data                            = base64encode(local.user_data)
  ebs_optimized                        = true
  instance_initiated_shutdown_behavior = "terminate" # a node that can't start ends, and costs nothing
  update_default_version               = true
  tags                                 = { ray-cluster-name = var.name }

  iam_instance_profile {
    arn = var.instance_profile_arn
  }

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1 # nothing runs in containers, which would be a hop further
    instance_metadata_tags      = "disabled"
  }

  monitoring {
    enabled = true
  }

  block_device_mappings {
    device_name = "/dev/sda1"

    ebs {
      volume_type           = "gp3"
      volume_size           = var.volume_gb
      throughput            = 500
      iops                  = 3000
      encrypted             = true
      kms_key_id            = var.kms_key_arn
      delete_on_termination = true
    }
  }

  dynamic "network_interfaces" {
    for_each = range(each.value.layout.num_cards)

    content {
      description           = "Node of ${var.name}."
      device_index          = network_interfaces.value == 0 ? 0 : 1
      network_card_index    = network_interfaces.value
      interface_type        = !var.efa ? null : network_interfaces.value > 0 ? "efa-only" : each.value.layout.efa_on_first ? "efa" : null
      security_groups       = var.security_group_ids
      delete_on_termination = true
      # EC2 takes this only where there is one interface; the subnets give no public addresses either.
      associate_public_ip_address = each.value.layout.num_cards == 1 ? "false" : null
    }
  }

  dynamic "placement" {
    for_each = each.value.placement_zone == null ? [] : [each.value.placement_zone]

    content {
      group_name = aws_placement_group.this[placement.value].name
    }
  }

  dynamic "instance_market_options" {
    for_each = each.value.market == "capacity-block" ? [each.value.market] : []

    content {
      market_type = instance_market_options.value
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = each.value.reservation_id == null ? [] : [each.value.reservation_id]

    content {
      capacity_reservation_target {
        capacity_reservation_id = capacity_reservation_specification.value
      }
    }
  }

  dynamic "tag_specifications" {
    for_each = toset(["instance", "volume", "network-interface"])

    content {
      resource_type = tag_specifications.value
      tags          = local.tags
    }
  }

  lifecycle {
    precondition {
      condition     = alltrue([for type in each.value.instance_types : local.num_gpus[type] == var.num_devices])
      error_message = "Pool ${var.pool}: num_devices is ${var.num_devices}, but the types have ${jsonencode(local.num_gpus)} GPUs. Ray would wait for GPUs that never come: put types with other GPUs into a pool of their own."
    }

    precondition {
      condition     = !var.efa || alltrue([for type in each.value.instance_types : data.aws_ec2_instance_type.this[type].efa_supported])
      error_message = "Pool ${var.pool}: not all of its instance types have Elastic Fabric Adapters. Take those out, or set efa = false."
    }

    precondition {
      condition     = alltrue([for type in each.value.instance_types : contains(data.aws_ec2_instance_type.this[type].supported_architectures, "x86_64")])
      error_message = "Pool ${var.pool}: the images are for x86_64, and not all of its instance types are."
    }

    precondition {
      condition     = length(local.user_data) < 16384
      error_message = "User data is over EC2's limit of 16 KiB: shorten names, or move a step into terraform/images/provision.sh."
    }
  }
}
