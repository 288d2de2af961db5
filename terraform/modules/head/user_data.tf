module "node" {
  source = "../node"

  name      = var.name
  node_type = "head"
  node      = var.node
  extras    = ""
}

locals {
  user_data = templatefile("${path.module}/user_data.sh.tftpl", {
    start         = module.node.start
    finish        = module.node.finish
    name          = var.name
    region        = var.node.region
    config_bucket = var.node.config_bucket
    service_id    = var.head_service_id
    ray_port      = var.node.ray_port
    redis_address = var.memory_db == null ? "" : "rediss://${aws_memorydb_cluster.this[0].cluster_endpoint[0].address}:6379"
  })
}
