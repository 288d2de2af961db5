# What a pool refuses, and what it warns of.

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

run "a_pool_whose_types_differ_in_gpus" {
  command = plan

  variables {
    instance_types = ["p5.48xlarge", "g5.xlarge"]
    num_cpus       = 4
  }

  expect_failures = [aws_launch_template.this]
}

run "efa_on_types_without" {
  command = plan

  variables {
    instance_types = ["g5.xlarge"]
    num_devices    = 1
    num_cpus       = 4
    efa            = true
  }

  expect_failures = [aws_launch_template.this]
}

run "types_of_another_architecture" {
  command = plan

  variables {
    instance_types = ["m7g.xlarge"]
    num_devices    = 0
    num_cpus       = 4
  }

  expect_failures = [aws_launch_template.this]
}

run "more_cpus_than_there_are" {
  command = plan

  variables {
    num_cpus = 193
  }

  expect_failures = [check.cpus]
}

run "nodes_kept_on_spot_alone" {
  command = plan

  variables {
    min_nodes = 1
    markets   = [{ market = "spot" }]
  }

  expect_failures = [check.kept_nodes]
}

run "a_market_after_on_demand" {
  command = plan

  variables {
    markets = [{ market = "on-demand" }, { market = "spot" }]
  }

  expect_failures = [check.order_of_markets]
}

run "an_unknown_market" {
  command = plan

  variables {
    markets = [{ market = "on_demand" }]
  }

  expect_failures = [var.markets]
}

run "no_market" {
  command = plan

  variables {
    markets = []
  }

  expect_failures = [var.markets]
}

run "a_block_without_its_zone" {
  command = plan

  variables {
    markets = [{ market = "capacity-block", reservation_id = "cr-0aaa" }]
  }

  expect_failures = [var.markets]
}

run "a_reservation_without_its_id" {
  command = plan

  variables {
    markets = [{ market = "reservation", zone = "us-east-1a" }]
  }

  expect_failures = [var.markets]
}

run "a_reservation_in_a_zone_without_subnet" {
  command = plan

  variables {
    markets = [{ market = "reservation", reservation_id = "cr-0aaa", zone = "us-east-1f" }]
  }

  expect_failures = [var.markets]
}

run "a_reservation_of_a_type_that_the_pool_has_not" {
  command = plan

  variables {
    markets = [{ market = "reservation", reservation_id = "cr-0aaa", zone = "us-east-1a", instance_type = "p4d.24xlarge" }]
  }

  expect_failures = [var.markets]
}

run "spot_with_a_reservation" {
  command = plan

  variables {
    markets = [{ market = "spot", reservation_id = "cr-0aaa", zone = "us-east-1a" }]
  }

  expect_failures = [var.markets]
}

run "values_that_are_wrong_by_themselves" {
  command = plan

  variables {
    name               = "River"
    pool               = "head"
    num_devices        = 0.5
    num_cpus           = 0
    min_nodes          = 5
    instance_types     = ["p5.48xlarge", "p5.48xlarge"]
    subnets            = {}
    security_group_ids = []
    ami_id             = "ubuntu"
    volume_gb          = 8
  }

  expect_failures = [
    var.name,
    var.pool,
    var.num_devices,
    var.num_cpus,
    var.max_nodes,
    var.instance_types,
    var.subnets,
    var.security_group_ids,
    var.ami_id,
    var.volume_gb,
  ]
}
