# A cluster in one region. The environments differ in their data alone.

locals {
  num_max_workers = sum([for pool in var.pools : pool.max_nodes])

  # What every node must know of its cluster.
  node = {
    region               = var.region
    config_bucket        = module.storage.config_bucket.name
    weights_bucket       = module.storage.weights_bucket.name
    ray_token_secret_arn = module.storage.ray_token_secret_arn
    head_address         = module.network.head_address
    ray_port             = 6379
    wheel_key            = try(aws_s3_object.wheel["wheel"].key, var.wheel_key)
    log_group            = module.storage.log_group.name
    events_queue_url     = module.events.queue_url
  }
}

module "storage" {
  source = "../../modules/storage"

  name          = var.name
  models        = var.models
  replication   = var.replication
  force_destroy = var.force_destroy
}

module "network" {
  source = "../../modules/network"

  name                 = var.name
  cidr                 = var.cidr
  zones                = var.zones
  nat_per_zone         = var.nat_per_zone
  flow_log_kms_key_arn = module.storage.kms_key_arn
}

module "registry" {
  source = "../../modules/registry"

  name          = var.name
  kms_key_arn   = module.storage.kms_key_arn
  force_destroy = var.force_destroy
}

module "events" {
  source = "../../modules/events"

  name        = var.name
  kms_key_arn = module.storage.kms_key_arn
}

module "iam" {
  source = "../../modules/iam"

  name                 = var.name
  region               = var.region
  weights_bucket_arn   = module.storage.weights_bucket.arn
  config_bucket_arn    = module.storage.config_bucket.arn
  kms_key_arn          = module.storage.kms_key_arn
  ray_token_secret_arn = module.storage.ray_token_secret_arn
  events_queue_arn     = module.events.queue_arn
  log_group_arn        = module.storage.log_group.arn
  head_service_arn     = module.network.head_service_arn
  namespace_zone_id    = module.network.namespace_zone_id
  repository_arn       = module.registry.repository_arn
}

module "edge" {
  source = "../../modules/edge"

  name                   = var.name
  vpc_id                 = module.network.vpc_id
  public_subnets         = module.network.public_subnets
  node_security_group_id = module.network.node_security_group_id
  certificate_arn        = var.certificate_arn
  allowed_cidrs          = var.allowed_cidrs
  log_bucket             = module.storage.log_bucket.name
  kms_key_arn            = module.storage.kms_key_arn
  deletion_protection    = var.deletion_protection
}

module "pool" {
  source   = "../../modules/gpu_pool"
  for_each = var.pools

  name                 = var.name
  pool                 = each.key
  instance_types       = each.value.instance_types
  num_devices          = each.value.num_devices
  num_cpus             = each.value.num_cpus
  min_nodes            = each.value.min_nodes
  max_nodes            = each.value.max_nodes
  markets              = each.value.markets
  efa                  = each.value.efa
  subnets              = module.network.private_subnets
  security_group_ids   = [module.network.node_security_group_id]
  instance_profile_arn = module.iam.worker_profile.arn
  ami_id               = var.ami_id
  kms_key_arn          = module.storage.kms_key_arn
  node                 = local.node
}

module "head" {
  source = "../../modules/head"

  name                 = var.name
  subnets              = module.network.private_subnets
  security_group_ids   = [module.network.node_security_group_id]
  instance_profile_arn = module.iam.head_profile.arn
  instance_types       = var.head.instance_types
  ami_id               = var.ami_id
  kms_key_arn          = module.storage.kms_key_arn
  node                 = local.node
  node_types           = { for name, pool in module.pool : name => pool.node_type }
  num_max_workers      = local.num_max_workers
  idle_timeout_s       = var.idle_timeout_s
  head_service_id      = module.network.head_service_id
  target_group_arns    = [module.edge.target_group_arn]

  memory_db = !var.head.memory_db ? null : {
    vpc_id    = module.network.vpc_id
    subnets   = module.network.private_subnets
    node_type = "db.r7g.large"
  }
}

module "observability" {
  source = "../../modules/observability"

  name                    = var.name
  region                  = var.region
  kms_key_arn             = module.storage.kms_key_arn
  alb_arn_suffix          = module.edge.alb_arn_suffix
  target_group_arn_suffix = module.edge.target_group_arn_suffix
  emails                  = var.alarm_emails
  prometheus              = var.prometheus
}
