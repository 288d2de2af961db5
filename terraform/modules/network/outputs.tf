output "vpc_id" {
  description = "The VPC."
  value       = aws_vpc.this.id
}

output "vpc_cidr" {
  description = "Addresses of the VPC."
  value       = aws_vpc.this.cidr_block
}

output "private_subnets" {
  description = "Subnet of each zone for nodes, with a way out and none in."
  value       = { for zone, subnet in aws_subnet.private : zone => subnet.id }
}

output "public_subnets" {
  description = "Subnet of each zone for load balancers."
  value       = { for zone, subnet in aws_subnet.public : zone => subnet.id }
}

output "node_security_group_id" {
  description = "Security group of all nodes, which may speak to each other on every port."
  value       = aws_security_group.node.id
}

output "namespace_id" {
  description = "Private DNS namespace NAME.internal."
  value       = aws_service_discovery_private_dns_namespace.this.id
}

output "namespace_zone_id" {
  description = "Route 53 zone of the namespace, in which Cloud Map writes the head's address on the head's behalf."
  value       = aws_service_discovery_private_dns_namespace.this.hosted_zone
}

output "head_service_id" {
  description = "Cloud Map service under which the head registers its address."
  value       = aws_service_discovery_service.head.id
}

output "head_service_arn" {
  description = "The same, as policies name it."
  value       = aws_service_discovery_service.head.arn
}

output "head_address" {
  description = "Name under which nodes find the head."
  value       = "${aws_service_discovery_service.head.name}.${aws_service_discovery_private_dns_namespace.this.name}"
}
