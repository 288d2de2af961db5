# What nodes fetch from the config bucket: Ray's autoscaler file, and what is installed on a bare image.

locals {
  autoscaler_yaml = yamlencode({
    cluster_name         = var.name
    max_workers          = var.num_max_workers
    idle_timeout_minutes = var.idle_timeout_s / 60
    upscaling_speed      = 100 # the plan says how many nodes are wanted, and they are wanted at once
    head_node_type       = "head"

    provider = {
      type                        = "external"
      module                      = "deployments.aws.fleet_provider.FleetProvider"
      region                      = var.node.region
      use_internal_ips            = true
      disable_node_updaters       = true # nodes set themselves up, nobody comes by SSH
      disable_launch_config_check = true
      cache_stopped_nodes         = false
    }

    available_node_types = merge(var.node_types, {
      head = {
        resources   = { CPU = min([for facts in data.aws_ec2_instance_type.this : facts.default_vcpus]...) }
        labels      = {}
        min_workers = 0
        max_workers = 0
        node_config = {}
      }
    })

    # Ray's monitor dies without these, though nothing here uses them.
    auth                          = { ssh_user = "none" }
    cluster_synced_files          = []
    docker                        = {}
    file_mounts                   = {}
    file_mounts_sync_continuously = false
    head_setup_commands           = []
    head_start_ray_commands       = []
    initialization_commands       = []
    rsync_exclude                 = []
    rsync_filter                  = []
    setup_commands                = []
    worker_setup_commands         = []
    worker_start_ray_commands     = []
  })
}

resource "aws_s3_object" "autoscaler" {
  bucket                 = var.node.config_bucket
  key                    = "cluster/autoscaler.yaml"
  content                = local.autoscaler_yaml
  content_type           = "application/yaml"
  server_side_encryption = "aws:kms"
  kms_key_id             = var.kms_key_arn
  tags                   = { ray-cluster-name = var.name }
}

resource "aws_s3_object" "provision" {
  bucket                 = var.node.config_bucket
  key                    = "cluster/provision.sh"
  content                = file("${path.module}/../../images/provision.sh")
  content_type           = "text/x-shellscript"
  server_side_encryption = "aws:kms"
  kms_key_id             = var.kms_key_arn
  tags                   = { ray-cluster-name = var.name }
}

check "sizes" {
  assert {
    condition     = var.num_max_workers >= sum(concat([0], [for type in values(var.node_types) : type.min_workers]))
    error_message = "num_max_workers is below the sum of the pools' min_nodes: some of those nodes would never start."
  }

  assert {
    condition     = var.num_max_workers <= sum(concat([0], [for type in values(var.node_types) : type.max_workers]))
    error_message = "num_max_workers is above the sum of the pools' max_nodes, which is never reached."
  }
}
