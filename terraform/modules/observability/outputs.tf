output "topic_arn" {
  description = "Topic of alarms."
  value       = aws_sns_topic.alarms.arn
}

output "dashboard_name" {
  description = "Dashboard in CloudWatch."
  value       = aws_cloudwatch_dashboard.this.dashboard_name
}

output "workspace_endpoint" {
  description = "Where a Prometheus writes to; null without a workspace."
  value       = one(aws_prometheus_workspace.this[*].prometheus_endpoint)
}

output "alert_rules" {
  description = "Alert rules on Headwater's own series, as a Prometheus reads them."
  value       = yamlencode(local.rules)
}
