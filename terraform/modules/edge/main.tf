# Where clients come in: TLS ends here, and nothing else of the cluster can be reached from outside.

locals {
  tags = { ray-cluster-name = var.name }
}

resource "aws_lb" "this" {
  name                       = var.name
  load_balancer_type         = "application"
  security_groups            = [aws_security_group.this.id]
  subnets                    = values(var.public_subnets)
  idle_timeout               = var.idle_timeout_s # an answer may think for long
  drop_invalid_header_fields = true
  enable_deletion_protection = var.deletion_protection
  tags                       = local.tags

  access_logs {
    bucket  = var.log_bucket
    prefix  = "alb"
    enabled = true
  }
}

# Serve's proxy on the head. Proxies of other nodes are reached through it.
resource "aws_lb_target_group" "serve" {
  name                 = "${var.name}-serve"
  port                 = var.serve_port
  protocol             = "HTTP"
  vpc_id               = var.vpc_id
  deregistration_delay = 300
  tags                 = local.tags

  health_check {
    path                = "/-/healthz"
    matcher             = "200"
    interval            = 10
    timeout             = 5
    healthy_threshold   = 2
    unhealthy_threshold = 3
  }
}

resource "aws_lb_listener" "https" {
  load_balancer_arn = aws_lb.this.arn
  port              = 443
  protocol          = "HTTPS"
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  certificate_arn   = var.certificate_arn
  tags              = local.tags

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.serve.arn
  }
}

resource "aws_lb_listener" "http" {
  load_balancer_arn = aws_lb.this.arn
  port              = 80
  protocol          = "HTTP"
  tags              = local.tags

  default_action {
    type = "redirect"

    redirect {
      port        = "443"
      protocol    = "HTTPS"
      status_code = "HTTP_301"
    }
  }
}
