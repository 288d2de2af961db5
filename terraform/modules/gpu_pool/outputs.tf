output "node_type" {
  description = "Entry of available_node_types in Ray's autoscaler file."
  value = {
    resources   = local.resources
    labels      = { "headwater.pool" = var.pool }
    min_workers = var.min_nodes
    max_workers = var.max_nodes
    node_config = { offers = local.offers }
  }
}

output "launch_template_ids" {
  description = "Launch template of each kind of offer."
  value       = { for key, template in aws_launch_template.this : key => template.id }
}

output "card" {
  description = "What the cluster's card says of the pool."
  value = {
    instance_types = var.instance_types
    min_nodes      = var.min_nodes
    max_nodes      = var.max_nodes
    num_devices    = var.num_devices
    markets        = distinct(var.markets[*].market)
  }
}
