output "group_name" {
  description = "Auto scaling group of the head."
  value       = aws_autoscaling_group.head.name
}

output "autoscaler_yaml" {
  description = "Ray's autoscaler file, which lies in the config bucket as cluster/autoscaler.yaml."
  value       = local.autoscaler_yaml
}

output "memory_db_endpoint" {
  description = "Address of MemoryDB; null without."
  value       = one(aws_memorydb_cluster.this[*].cluster_endpoint[0].address)
}
