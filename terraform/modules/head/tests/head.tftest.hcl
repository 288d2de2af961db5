# The head's template, group, files and tables.

mock_provider "aws" {
  mock_resource "aws_launch_template" {
    defaults = {
      id             = "lt-0a1b2c3d4e5f60718"
      latest_version = 3
    }
  }

  mock_resource "aws_security_group" {
    defaults = { id = "sg-0fedcba9876543210" }
  }

  mock_resource "aws_memorydb_cluster" {
    defaults = { cluster_endpoint = [{ address = "clustercfg.river-ray.abcdef.memorydb.us-east-1.amazonaws.com", port = 6379 }] }
  }

  mock_data "aws_ssm_parameter" {
    defaults = { insecure_value = "ami-0123456789abcdef0" }
  }

  mock_data "aws_default_tags" {
    defaults = { tags = { project = "headwater" } }
  }

  mock_data "aws_ec2_instance_type" {
    defaults = {
      default_vcpus           = 8
      supported_architectures = ["x86_64"]
    }
  }
}

variables {
  name                 = "river"
  instance_types       = ["m7i.2xlarge", "m6i.2xlarge"]
  subnets              = { us-east-1a = "subnet-0a", us-east-1b = "subnet-0b", us-east-1c = "subnet-0c" }
  security_group_ids   = ["sg-0123456789abcdef0"]
  instance_profile_arn = "arn:aws:iam::123456789012:instance-profile/river-head"
  kms_key_arn          = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
  head_service_id      = "srv-0123456789abcdef"
  target_group_arns    = ["arn:aws:elasticloadbalancing:us-east-1:123456789012:targetgroup/river/0123456789abcdef"]
  num_max_workers      = 4
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
  node_types = {
    h100 = {
      resources   = { CPU = 160, GPU = 8 }
      labels      = { "headwater.pool" = "h100" }
      min_workers = 0
      max_workers = 4
      node_config = {
        offers = [{
          market          = "spot"
          launch_template = { id = "lt-0123456789abcdef0", version = "1" }
          instance_types  = ["p5.48xlarge", "p5e.48xlarge"]
          subnets         = { us-east-1a = "subnet-0a" }
        }]
      }
    }
  }
}

run "one_head_is_kept_in_whichever_zone" {
  assert {
    condition = (
      aws_autoscaling_group.head.min_size == 1
      && aws_autoscaling_group.head.max_size == 1
      && aws_autoscaling_group.head.desired_capacity == 1
      && aws_autoscaling_group.head.health_check_type == "EC2"
      && length(aws_autoscaling_group.head.vpc_zone_identifier) == 3
    )
    error_message = "A group of one over all zones."
  }

  assert {
    condition = tomap({
      for tag in aws_autoscaling_group.head.tag : tag.key => tag.value if tag.propagate_at_launch
      }) == tomap({
      Name               = "river-head"
      project            = "headwater"
      ray-cluster-name   = "river"
      ray-node-type      = "head"
      ray-user-node-type = "head"
      ray-node-status    = "up-to-date"
    })
    error_message = "Ray's autoscaler knows its head by these tags."
  }

  assert {
    condition     = aws_autoscaling_group.head.mixed_instances_policy[0].launch_template[0].override[*].instance_type == tolist(["m7i.2xlarge", "m6i.2xlarge"])
    error_message = "Types in the order of preference."
  }

  assert {
    condition     = aws_autoscaling_group.head.mixed_instances_policy[0].instances_distribution[0].on_demand_base_capacity == 1
    error_message = "A head is never spot."
  }

  assert {
    condition     = aws_launch_template.head.instance_initiated_shutdown_behavior == "terminate"
    error_message = "A head that shuts itself down is replaced."
  }

  assert {
    condition = (
      aws_launch_template.head.metadata_options[0].http_tokens == "required"
      && aws_launch_template.head.metadata_options[0].http_put_response_hop_limit == 1
      && aws_launch_template.head.block_device_mappings[0].ebs[0].encrypted == "true"
      && aws_launch_template.head.network_interfaces[0].associate_public_ip_address == "false"
    )
    error_message = "Private, encrypted, IMDSv2."
  }

  assert {
    condition     = length(aws_memorydb_cluster.this) == 0 && output.memory_db_endpoint == null && !strcontains(base64decode(aws_launch_template.head.user_data), "RAY_REDIS_ADDRESS")
    error_message = "No tables outside unless asked for."
  }
}

run "the_autoscaler_file_has_all_that_rays_monitor_reads" {
  variables {
    idle_timeout_s = 90
  }

  assert {
    condition     = aws_s3_object.autoscaler.key == "cluster/autoscaler.yaml" && aws_s3_object.autoscaler.content == output.autoscaler_yaml
    error_message = "The file lies in the config bucket."
  }

  assert {
    condition = length(setsubtract([
      "auth", "available_node_types", "cluster_name", "cluster_synced_files", "docker", "file_mounts", "head_node_type",
      "head_setup_commands", "head_start_ray_commands", "idle_timeout_minutes", "initialization_commands", "max_workers",
      "provider", "rsync_exclude", "rsync_filter", "setup_commands", "upscaling_speed", "worker_setup_commands",
      "worker_start_ray_commands",
    ], keys(yamldecode(output.autoscaler_yaml)))) == 0
    error_message = "Ray's monitor dies where one of them is missing, and the head with it."
  }

  assert {
    condition = (
      yamldecode(output.autoscaler_yaml).idle_timeout_minutes == 1.5
      && yamldecode(output.autoscaler_yaml).max_workers == 4
      && yamldecode(output.autoscaler_yaml).provider.cache_stopped_nodes == false
      && yamldecode(output.autoscaler_yaml).provider.module == "deployments.aws.fleet_provider.FleetProvider"
    )
    error_message = "Sizes and provider."
  }

  assert {
    condition     = jsonencode(yamldecode(output.autoscaler_yaml).available_node_types.h100) == jsonencode(var.node_types.h100)
    error_message = "Node types go in as pools give them."
  }

  assert {
    condition     = yamldecode(output.autoscaler_yaml).available_node_types.head.max_workers == 0 && yamldecode(output.autoscaler_yaml).available_node_types.head.resources.CPU == 8
    error_message = "Ray launches no head."
  }

  assert {
    condition     = aws_s3_object.autoscaler.kms_key_id == var.kms_key_arn && aws_s3_object.provision.kms_key_id == var.kms_key_arn
    error_message = "Encrypted with the cluster's key."
  }
}

run "memory_db_is_for_the_head_alone" {
  variables {
    memory_db = {
      vpc_id    = "vpc-0123456789abcdef0"
      subnets   = { us-east-1a = "subnet-0a", us-east-1b = "subnet-0b" }
      node_type = "db.t4g.small"
    }
  }

  assert {
    condition = (
      aws_memorydb_cluster.this[0].tls_enabled
      && aws_memorydb_cluster.this[0].kms_key_arn == var.kms_key_arn
      && aws_memorydb_cluster.this[0].num_shards == 1
    )
    error_message = "Encrypted on the wire and at rest; one shard, as Ray wants."
  }

  assert {
    condition     = aws_vpc_security_group_ingress_rule.memory_db[0].cidr_ipv4 == null && aws_vpc_security_group_ingress_rule.memory_db[0].referenced_security_group_id == aws_security_group.memory_db_client[0].id
    error_message = "Nobody but the head comes in."
  }

  assert {
    condition     = contains(aws_launch_template.head.network_interfaces[0].security_groups, aws_security_group.memory_db_client[0].id)
    error_message = "The head is let in."
  }

  assert {
    condition     = strcontains(base64decode(aws_launch_template.head.user_data), "RAY_REDIS_ADDRESS=rediss://${output.memory_db_endpoint}:6379\n")
    error_message = "Ray finds the tables, by TLS."
  }
}

run "more_workers_than_pools_have" {
  command = plan

  variables {
    num_max_workers = 5
  }

  expect_failures = [check.sizes]
}

run "values_that_are_wrong_by_themselves" {
  command = plan

  variables {
    name               = "River"
    instance_types     = []
    subnets            = {}
    security_group_ids = []
    ami_id             = "ubuntu"
    volume_gb          = 8
    num_max_workers    = -1
    idle_timeout_s     = 0
  }

  expect_failures = [
    var.name,
    var.instance_types,
    var.subnets,
    var.security_group_ids,
    var.ami_id,
    var.volume_gb,
    var.num_max_workers,
    var.idle_timeout_s,
  ]
}

run "a_pool_that_is_called_head" {
  command = plan

  variables {
    node_types = {
      head = { resources = {}, labels = {}, min_workers = 0, max_workers = 4, node_config = { offers = [] } }
    }
  }

  expect_failures = [var.node_types]
}
