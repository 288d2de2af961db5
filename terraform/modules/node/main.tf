# What the user data of the head and of workers have in common. Makes nothing in AWS.

locals {
  values = {
    name          = var.name
    node_type     = var.node_type
    extras        = var.extras
    region        = var.node.region
    config_bucket = var.node.config_bucket
    token_secret  = var.node.ray_token_secret_arn
    wheel_key     = var.node.wheel_key
    wheel_folder  = dirname(var.node.wheel_key)
    wheel_file    = basename(var.node.wheel_key)
    log_group     = var.node.log_group
  }

  start  = templatefile("${path.module}/start.sh.tftpl", local.values)
  finish = templatefile("${path.module}/finish.sh.tftpl", local.values)
}
