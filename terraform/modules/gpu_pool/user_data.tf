module "node" {
  source = "../node"

  name      = var.name
  node_type = var.pool
  node      = var.node
  extras    = var.num_devices > 0 ? "cuda" : ""
}

locals {
  user_data = templatefile("${path.module}/user_data.sh.tftpl", {
    start        = module.node.start
    finish       = module.node.finish
    efa          = var.efa
    pool         = var.pool
    num_cpus     = var.num_cpus
    num_devices  = var.num_devices
    head_address = var.node.head_address
    ray_port     = var.node.ray_port
  })
}
