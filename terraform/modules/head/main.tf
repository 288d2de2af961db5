# The head: one instance, replaced by its group in whichever zone there is room.

data "aws_ec2_instance_type" "this" {
  for_each = toset(var.instance_types)

  instance_type = each.value
}

data "aws_ssm_parameter" "image" {
  count = var.ami_id == null ? 1 : 0

  name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
}

data "aws_default_tags" "current" {}

locals {
  # Neither a group nor a template's tags for what is launched get the provider's default tags.
  tags = merge(data.aws_default_tags.current.tags, {
    Name             = "${var.name}-head"
    ray-cluster-name = var.name
  })
  # By these Ray's autoscaler knows its own node.
  ray_tags = {
    ray-node-type      = "head"
    ray-user-node-type = "head"
    ray-node-status    = "up-to-date"
  }
}

resource "aws_launch_template" "head" {
  name                                 = "${var.name}-head"
  description                          = "Head of the Ray cluster ${var.name}."
  image_id                             = var.ami_id == null ? data.aws_ssm_parameter.image[0].insecure_value : var.ami_id
  user_data                            = base64encode(local.user_data)
  ebs_optimized                        = true
  instance_initiated_shutdown_behavior = "terminate" # a head that can't start ends, and is replaced
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
      throughput            = 250
      iops                  = 3000
      encrypted             = true
      kms_key_id            = var.kms_key_arn
      delete_on_termination = true
    }
  }

  network_interfaces {
    description                 = "Head of ${var.name}."
    device_index                = 0
    security_groups             = concat(var.security_group_ids, aws_security_group.memory_db_client[*].id)
    associate_public_ip_address = "false"
    delete_on_termination       = true
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
      condition     = length(local.user_data) < 16384
      error_message = "User data is over EC2's limit of 16 KiB: shorten names, or move a step into terraform/images/provision.sh."
    }

    precondition {
      condition     = alltrue([for facts in data.aws_ec2_instance_type.this : contains(facts.supported_architectures, "x86_64")])
      error_message = "The head's image is for x86_64, and not all of its instance types are."
    }
  }
}

resource "aws_autoscaling_group" "head" {
  name                      = "${var.name}-head"
  min_size                  = 1
  max_size                  = 1
  desired_capacity          = 1
  vpc_zone_identifier       = values(var.subnets)
  target_group_arns         = var.target_group_arns
  health_check_type         = "EC2" # Serve answers 503 while it has no replica, which is no fault of the head
  health_check_grace_period = 900

  mixed_instances_policy {
    instances_distribution {
      on_demand_base_capacity                  = 1
      on_demand_percentage_above_base_capacity = 100
      on_demand_allocation_strategy            = "prioritized"
    }

    launch_template {
      launch_template_specification {
        launch_template_id = aws_launch_template.head.id
        version            = tostring(aws_launch_template.head.latest_version)
      }

      dynamic "override" {
        for_each = var.instance_types

        content {
          instance_type = override.value
        }
      }
    }
  }

  dynamic "tag" {
    for_each = merge(local.tags, local.ray_tags)

    content {
      key                 = tag.key
      value               = tag.value
      propagate_at_launch = true
    }
  }

  # A head reads them when it starts.
  depends_on = [aws_s3_object.autoscaler, aws_s3_object.provision, aws_memorydb_cluster.this]
}
