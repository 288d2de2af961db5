output "start" {
  description = "First part of a node's user data: functions, and the steps that need nothing but the image."
  value       = local.start
}

output "finish" {
  description = "Last part: units that all nodes have, and the logs."
  value       = local.finish
}
