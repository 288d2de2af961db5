# Which templates and offers a pool makes of its markets and types.

mock_provider "aws" {
  mock_resource "aws_launch_template" {
    defaults = {
      id             = "lt-0a1b2c3d4e5f60718"
      latest_version = 3
    }
  }

  mock_data "aws_ssm_parameter" {
    defaults = { insecure_value = "ami-0123456789abcdef0" }
  }

  mock_data "aws_default_tags" {
    defaults = { tags = { project = "headwater" } }
  }

  # As EC2 tells of p5.48xlarge.
  mock_data "aws_ec2_instance_type" {
    defaults = {
      default_vcpus           = 192
      efa_supported           = true
      efa_maximum_interfaces  = 32
      maximum_network_cards   = 32
      supported_architectures = ["x86_64"]
      gpus                    = [{ count = 8, manufacturer = "NVIDIA", memory_size = 81920, name = "H100" }]
    }
  }
}

override_data {
  target = data.aws_ec2_instance_type.this["p5en.48xlarge"]
  values = {
    default_vcpus           = 192
    efa_supported           = true
    efa_maximum_interfaces  = 16
    maximum_network_cards   = 16
    supported_architectures = ["x86_64"]
    gpus                    = [{ count = 8, manufacturer = "NVIDIA", memory_size = 144384, name = "H200" }]
  }
}

override_data {
  target = data.aws_ec2_instance_type.this["p6-b300.48xlarge"]
  values = {
    default_vcpus           = 192
    efa_supported           = true
    efa_maximum_interfaces  = 16
    maximum_network_cards   = 17
    supported_architectures = ["x86_64"]
    gpus                    = [{ count = 8, manufacturer = "NVIDIA", memory_size = 274877, name = "B300" }]
  }
}

override_data {
  target = data.aws_ec2_instance_type.this["g5.xlarge"]
  values = {
    default_vcpus           = 4
    efa_supported           = false
    efa_maximum_interfaces  = 0
    maximum_network_cards   = 1
    supported_architectures = ["x86_64"]
    gpus                    = [{ count = 1, manufacturer = "NVIDIA", memory_size = 24576, name = "A10G" }]
  }
}

override_data {
  target = data.aws_ec2_instance_type.this["m7g.xlarge"]
  values = {
    default_vcpus           = 4
    efa_supported           = false
    efa_maximum_interfaces  = 0
    maximum_network_cards   = 1
    supported_architectures = ["arm64"]
    gpus                    = []
  }
}

variables {
  name                 = "river"
  pool                 = "h100"
  instance_types       = ["p5.48xlarge", "p5e.48xlarge"]
  num_devices          = 8
  num_cpus             = 160
  min_nodes            = 0
  max_nodes            = 4
  markets              = [{ market = "spot" }, { market = "on-demand" }]
  subnets              = { us-east-1a = "subnet-0a", us-east-1b = "subnet-0b", us-east-1c = "subnet-0c" }
  security_group_ids   = ["sg-0123456789abcdef0"]
  instance_profile_arn = "arn:aws:iam::123456789012:instance-profile/river-worker"
  kms_key_arn          = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
  node = {
    region               = "us-east-1"
    config_bucket        = "river-config"
    weights_bucket       = "river-weights"
    ray_token_secret_arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:river-ray-token-AbCdEf"
    head_address         = "head.river.internal"
    ray_port             = 6379
    wheel_key            = "wheels/1f2e3d/headwater-0.1.0-py3-none-any.whl"
    log_group            = "/headwater/river"
    events_queue_url     = "https://sqs.us-east-1.amazonaws.com/123456789012/river-events"
  }
}

run "spot_and_on_demand_share_one_template_over_all_types_and_zones" {
  assert {
    condition     = jsonencode(keys(output.launch_template_ids)) == jsonencode(["open"])
    error_message = "One template is enough."
  }

  assert {
    condition     = jsonencode(output.node_type.node_config.offers[*].market) == jsonencode(["spot", "on-demand"])
    error_message = "Offers keep the order of the markets."
  }

  assert {
    condition = jsonencode(output.node_type.node_config.offers[0]) == jsonencode({
      market          = "spot"
      launch_template = { id = "lt-0a1b2c3d4e5f60718", version = "3" }
      instance_types  = ["p5.48xlarge", "p5e.48xlarge"]
      subnets         = { us-east-1a = "subnet-0a", us-east-1b = "subnet-0b", us-east-1c = "subnet-0c" }
    })
    error_message = "An offer names all types and zones of its market."
  }

  assert {
    condition     = length(aws_launch_template.this["open"].instance_market_options) == 0 && length(aws_launch_template.this["open"].capacity_reservation_specification) == 0
    error_message = "Who launches says whether it is spot."
  }

  assert {
    condition     = length(aws_placement_group.this) == 0 && length(aws_launch_template.this["open"].placement) == 0
    error_message = "Without EFA nodes may lie anywhere."
  }

  assert {
    condition     = length(aws_launch_template.this["open"].network_interfaces) == 1 && aws_launch_template.this["open"].network_interfaces[0].associate_public_ip_address == "false"
    error_message = "Without EFA there is one private interface."
  }

  assert {
    condition     = jsonencode(output.node_type.resources) == jsonencode({ CPU = 160, GPU = 8 }) && output.node_type.labels["headwater.pool"] == "h100"
    error_message = "Ray plans with these."
  }
}

run "templates_are_private_encrypted_and_tagged" {
  assert {
    condition = (
      aws_launch_template.this["open"].metadata_options[0].http_tokens == "required"
      && aws_launch_template.this["open"].metadata_options[0].http_put_response_hop_limit == 1
    )
    error_message = "IMDSv2, and no hop further."
  }

  assert {
    condition = (
      aws_launch_template.this["open"].block_device_mappings[0].ebs[0].encrypted == "true"
      && aws_launch_template.this["open"].block_device_mappings[0].ebs[0].kms_key_id == var.kms_key_arn
    )
    error_message = "The root volume is encrypted with the cluster's key."
  }

  assert {
    condition     = aws_launch_template.this["open"].instance_initiated_shutdown_behavior == "terminate"
    error_message = "A node that shuts itself down must not stay, stopped."
  }

  assert {
    condition = alltrue([
      for launched in aws_launch_template.this["open"].tag_specifications :
      launched.tags["ray-cluster-name"] == "river" && launched.tags["project"] == "headwater"
    ]) && length(aws_launch_template.this["open"].tag_specifications) == 3
    error_message = "Instance, volume and interface carry the cluster's name and the default tags."
  }
}

run "with_efa_all_cards_get_adapters_and_each_zone_its_group" {
  variables {
    efa            = true
    instance_types = ["p5en.48xlarge", "p5e.48xlarge", "p5.48xlarge"]
  }

  assert {
    condition     = length(aws_launch_template.this) == 6 && length(aws_placement_group.this) == 3
    error_message = "Two layouts in three zones."
  }

  assert {
    condition     = length(aws_launch_template.this["open-32-cards-us-east-1b"].network_interfaces) == 32 && length(aws_launch_template.this["open-16-cards-us-east-1b"].network_interfaces) == 16
    error_message = "One interface for each card."
  }

  assert {
    condition     = aws_launch_template.this["open-16-cards-us-east-1a"].network_interfaces[*].interface_type == tolist(concat(["efa"], [for _ in range(15) : "efa-only"]))
    error_message = "The first card has IP and EFA, the others EFA alone."
  }

  assert {
    condition     = aws_launch_template.this["open-16-cards-us-east-1a"].network_interfaces[*].device_index == tolist(concat([0], [for _ in range(15) : 1]))
    error_message = "Only the first interface has device index 0."
  }

  assert {
    condition     = aws_launch_template.this["open-16-cards-us-east-1a"].network_interfaces[*].network_card_index == tolist(range(16))
    error_message = "Each card once."
  }

  assert {
    condition = (
      jsonencode(output.node_type.node_config.offers[0].instance_types) == jsonencode(["p5en.48xlarge"])
      && jsonencode(output.node_type.node_config.offers[0].subnets) == jsonencode({ us-east-1a = "subnet-0a" })
      && jsonencode(output.node_type.node_config.offers[3].instance_types) == jsonencode(["p5e.48xlarge", "p5.48xlarge"])
      && length(output.node_type.node_config.offers) == 12
    )
    error_message = "An offer holds what one template can launch, the preferred type first."
  }
}

run "a_first_card_without_an_adapter_is_for_ip_alone" {
  variables {
    efa            = true
    instance_types = ["p6-b300.48xlarge"]
    subnets        = { us-east-1a = "subnet-0a" }
  }

  assert {
    condition     = aws_launch_template.this["open-17-cards-us-east-1a"].network_interfaces[0].interface_type == null
    error_message = "17 cards and 16 adapters."
  }

  assert {
    condition     = length([for card in aws_launch_template.this["open-17-cards-us-east-1a"].network_interfaces : card if card.interface_type == "efa-only"]) == 16
    error_message = "All other cards have one."
  }
}

run "reserved_capacity_binds_zone_and_type" {
  variables {
    efa = true
    markets = [
      { market = "capacity-block", reservation_id = "cr-0aaa", zone = "us-east-1b" },
      { market = "reservation", reservation_id = "cr-0bbb", zone = "us-east-1a", instance_type = "p5e.48xlarge" },
      { market = "spot" },
    ]
  }

  assert {
    condition = jsonencode(output.node_type.node_config.offers[0]) == jsonencode({
      market          = "capacity-block"
      launch_template = { id = "lt-0a1b2c3d4e5f60718", version = "3" }
      instance_types  = ["p5.48xlarge"]
      subnets         = { us-east-1b = "subnet-0b" }
    })
    error_message = "A block is asked in its own zone, for the pool's first type."
  }

  assert {
    condition     = jsonencode(output.node_type.node_config.offers[1].instance_types) == jsonencode(["p5e.48xlarge"]) && jsonencode(output.node_type.node_config.offers[1].subnets) == jsonencode({ us-east-1a = "subnet-0a" })
    error_message = "A reservation is asked for its own type."
  }

  assert {
    condition = (
      aws_launch_template.this["capacity-block-0"].instance_market_options[0].market_type == "capacity-block"
      && aws_launch_template.this["capacity-block-0"].capacity_reservation_specification[0].capacity_reservation_target[0].capacity_reservation_id == "cr-0aaa"
    )
    error_message = "A block has its market and its target."
  }

  assert {
    condition = (
      length(aws_launch_template.this["reservation-1"].instance_market_options) == 0
      && aws_launch_template.this["reservation-1"].capacity_reservation_specification[0].capacity_reservation_target[0].capacity_reservation_id == "cr-0bbb"
      && length(aws_launch_template.this["reservation-1"].placement) == 0
    )
    error_message = "A reservation is on-demand capacity with a target, in no group of ours."
  }

  assert {
    condition     = jsonencode(output.card.markets) == jsonencode(["capacity-block", "reservation", "spot"])
    error_message = "The card names each market once."
  }
}

run "a_pool_without_gpus_offers_none" {
  variables {
    pool           = "cpu"
    instance_types = ["m7i.4xlarge"]
    num_devices    = 0
    num_cpus       = 16
  }

  override_data {
    target = data.aws_ec2_instance_type.this["m7i.4xlarge"]
    values = { default_vcpus = 16, maximum_network_cards = 1, supported_architectures = ["x86_64"], gpus = [] }
  }

  assert {
    condition     = jsonencode(output.node_type.resources) == jsonencode({ CPU = 16 })
    error_message = "Ray must not see a GPU."
  }
}
