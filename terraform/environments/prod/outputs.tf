output "endpoint" {
  description = "Where clients are answered."
  value       = "https://${var.domain}"
}

output "dns_name" {
  description = "Name of the load balancer: make the domain a CNAME of it."
  value       = module.edge.dns_name
}

output "card_parameter" {
  description = "SSM parameter by which `headwater deploy` finds the cluster."
  value       = aws_ssm_parameter.card.name
}

output "weights_bucket" {
  description = "Bucket of the models."
  value       = module.storage.weights_bucket
}

output "kms_key_arn" {
  description = "Key of the cluster: with the bucket, what another region's replication needs."
  value       = module.storage.kms_key_arn
}

output "repository_url" {
  description = "Where images are pushed to."
  value       = module.registry.repository_url
}

output "alert_rules" {
  description = "Alert rules for a Prometheus of your own."
  value       = module.observability.alert_rules
}

output "workspace_endpoint" {
  description = "Where a Prometheus writes to; null without a workspace."
  value       = module.observability.workspace_endpoint
}
