output "target_group_arn" {
  description = "Target group of Serve's proxies."
  value       = aws_lb_target_group.serve.arn
}

output "target_group_arn_suffix" {
  description = "The same, as CloudWatch names it."
  value       = aws_lb_target_group.serve.arn_suffix
}

output "dns_name" {
  description = "Name of the load balancer, to which the endpoint's name points."
  value       = aws_lb.this.dns_name
}

output "alb_arn_suffix" {
  description = "The load balancer, as CloudWatch names it."
  value       = aws_lb.this.arn_suffix
}

output "security_group_id" {
  description = "Security group of the load balancer."
  value       = aws_security_group.this.id
}
