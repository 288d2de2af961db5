resource "aws_security_group" "this" {
  name        = "${var.name}-edge"
  description = "Load balancer of ${var.name}: clients in, Serve's port of nodes out."
  vpc_id      = var.vpc_id
  tags        = merge(local.tags, { Name = "${var.name}-edge" })
}

resource "aws_vpc_security_group_ingress_rule" "clients" {
  for_each = { for pair in setproduct(var.allowed_cidrs, [80, 443]) : "${pair[0]}-${pair[1]}" => pair }

  security_group_id = aws_security_group.this.id
  description       = each.value[1] == 443 ? "Clients." : "Clients that are sent on to HTTPS."
  cidr_ipv4         = each.value[0]
  from_port         = each.value[1]
  to_port           = each.value[1]
  ip_protocol       = "tcp"
  tags              = local.tags
}

resource "aws_vpc_security_group_egress_rule" "serve" {
  security_group_id            = aws_security_group.this.id
  description                  = "Serve's proxy."
  referenced_security_group_id = var.node_security_group_id
  from_port                    = var.serve_port
  to_port                      = var.serve_port
  ip_protocol                  = "tcp"
  tags                         = local.tags
}

resource "aws_vpc_security_group_ingress_rule" "serve" {
  security_group_id            = var.node_security_group_id
  description                  = "Serve's proxy, from the load balancer."
  referenced_security_group_id = aws_security_group.this.id
  from_port                    = var.serve_port
  to_port                      = var.serve_port
  ip_protocol                  = "tcp"
  tags                         = local.tags
}
