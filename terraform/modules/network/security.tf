# Who may speak to whom. The load balancer's way to the nodes is a rule of the module edge.

# AWS makes it, and whoever names no group gets it: nobody in, nobody out.
resource "aws_default_security_group" "this" {
  vpc_id = aws_vpc.this.id
  tags   = merge(local.tags, { Name = "${var.name}-default-closed" })
}

resource "aws_security_group" "node" {
  name        = "${var.name}-nodes"
  description = "Nodes of the Ray cluster."
  vpc_id      = aws_vpc.this.id
  tags        = merge(local.tags, { Name = "${var.name}-nodes" })
}

# Ray's workers listen on ports of their own choice, and Elastic Fabric Adapters want both directions.
resource "aws_vpc_security_group_ingress_rule" "node" {
  description                  = "Everything from other nodes."
  security_group_id            = aws_security_group.node.id
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "-1"
  tags                         = local.tags
}

resource "aws_vpc_security_group_egress_rule" "node" {
  description                  = "Everything to other nodes."
  security_group_id            = aws_security_group.node.id
  referenced_security_group_id = aws_security_group.node.id
  ip_protocol                  = "-1"
  tags                         = local.tags
}

# DNS, time and instance metadata are the VPC's own, on addresses that no security group filters.
resource "aws_vpc_security_group_egress_rule" "out" {
  for_each = {
    https = { port = 443, description = "AWS, Python packages." }
    http  = { port = 80, description = "Ubuntu's mirrors, whose packages are signed." }
  }

  description       = each.value.description
  security_group_id = aws_security_group.node.id
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "tcp"
  from_port         = each.value.port
  to_port           = each.value.port
  tags              = local.tags
}
