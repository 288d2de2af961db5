# What others read of the cluster, what nodes install, and what is checked before anything is made.

locals {
  settings = jsondecode(file("${path.root}/cluster.auto.tfvars.json"))
  known = [
    "alarm_emails", "allowed_cidrs", "ami_id", "certificate_arn", "cidr", "deletion_protection", "domain", "force_destroy",
    "head", "idle_timeout_s", "models", "name", "nat_per_zone", "pools", "prometheus", "region", "replication", "wheel_key",
    "zones",
  ]
  known_of_pool   = ["efa", "instance_types", "markets", "max_nodes", "min_nodes", "num_cpus", "num_devices"]
  known_of_market = ["instance_type", "market", "reservation_id", "zone"]
  pools_of_file   = try(local.settings.pools, {})

  # Terraform passes over keys that it doesn't know, and a typing error would be a default.
  unknown = concat(
    tolist(setsubtract(keys(local.settings), local.known)),
    tolist(setsubtract(keys(try(local.settings.head, {})), ["instance_types", "memory_db"])),
    flatten([for name, pool in local.pools_of_file : [for key in setsubtract(keys(pool), local.known_of_pool) : "pools.${name}.${key}"]]),
    flatten([
      for name, pool in local.pools_of_file : [
        for offer in try(pool.markets, []) : [for key in setsubtract(keys(offer), local.known_of_market) : "pools.${name}.markets.${key}"]
      ]
    ]),
  )
}

resource "terraform_data" "settings" {
  lifecycle {
    precondition {
      condition     = length(local.unknown) == 0
      error_message = "cluster.auto.tfvars.json has keys that nobody reads: ${join(", ", local.unknown)}. Known are ${join(", ", local.known)}."
    }
  }
}

resource "aws_s3_object" "wheel" {
  for_each = var.wheel_path == null ? {} : {
    wheel       = var.wheel_path
    constraints = "${path.root}/../../../constraints.txt"
  }

  bucket      = module.storage.config_bucket.name
  key         = "wheels/${substr(filesha256(var.wheel_path), 0, 12)}/${each.key == "wheel" ? basename(var.wheel_path) : "constraints.txt"}"
  source      = each.value
  source_hash = filesha256(each.value)
}

resource "aws_ssm_parameter" "card" {
  name        = "/headwater/${var.name}/card"
  description = "What the cluster ${var.name} tells of itself."
  type        = "String"
  tier        = "Intelligent-Tiering"

  value = jsonencode({
    format               = 1
    name                 = var.name
    region               = var.region
    endpoint             = "https://${var.domain}"
    head_group           = module.head.group_name
    dashboard_port       = 8265
    weights_bucket       = module.storage.weights_bucket.name
    config_bucket        = module.storage.config_bucket.name
    ray_token_secret_arn = module.storage.ray_token_secret_arn
    events_queue_url     = module.events.queue_url
    pools                = { for name, pool in module.pool : name => pool.card }
  })
}

check "the_certificate_is_here" {
  assert {
    condition     = strcontains(var.certificate_arn, ":acm:${var.region}:")
    error_message = "The certificate is one of another region: a load balancer takes only those of ${var.region}."
  }
}

check "somebody_is_told" {
  assert {
    condition     = length(var.alarm_emails) > 0
    error_message = "alarm_emails is empty: nobody is told of alarms."
  }
}
