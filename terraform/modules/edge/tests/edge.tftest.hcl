mock_provider "aws" {}

variables {
  name                   = "river"
  vpc_id                 = "vpc-0"
  public_subnets         = { us-east-1a = "subnet-0a", us-east-1b = "subnet-0b" }
  node_security_group_id = "sg-0"
  certificate_arn        = "arn:aws:acm:us-east-1:111122223333:certificate/0"
  allowed_cidrs          = ["203.0.113.0/24", "198.51.100.0/24"]
  log_bucket             = "logs"
  kms_key_arn            = "arn:aws:kms:us-east-1:111122223333:key/0"
}

run "only_tls_reaches_serve" {
  command = plan

  assert {
    condition     = aws_lb_listener.https.ssl_policy == "ELBSecurityPolicy-TLS13-1-2-2021-06" && aws_lb_listener.https.port == 443
    error_message = "TLS 1.2 and 1.3 alone."
  }

  assert {
    condition     = aws_lb_listener.http.default_action[0].type == "redirect"
    error_message = "Plain HTTP is only sent on."
  }
}

run "only_named_clients_come_in" {
  command = plan

  assert {
    condition     = toset([for rule in aws_vpc_security_group_ingress_rule.clients : rule.cidr_ipv4]) == var.allowed_cidrs
    error_message = "Rules are those of allowed_cidrs."
  }

  assert {
    condition     = length(aws_vpc_security_group_ingress_rule.clients) == 4
    error_message = "HTTP and HTTPS of two networks."
  }
}

run "rules_that_look_into_prompts_only_count" {
  command = plan

  assert {
    condition = toset(flatten([
      for rule in aws_wafv2_web_acl.this.rule : [
        for group in rule.statement[0].managed_rule_group_statement : group.rule_action_override[*].name
      ]
      ])) == toset([
      "SizeRestrictions_BODY", "CrossSiteScripting_BODY", "GenericLFI_BODY", "GenericRFI_BODY", "EC2MetaDataSSRF_BODY",
    ])
    error_message = "A prompt must not be blocked for what it says."
  }

  assert {
    condition     = length(distinct(aws_wafv2_web_acl.this.rule[*].priority)) == length(aws_wafv2_web_acl.this.rule)
    error_message = "Rules have an order."
  }
}

run "one_zone_is_not_enough" {
  command         = plan
  expect_failures = [var.public_subnets]

  variables {
    public_subnets = { us-east-1a = "subnet-0a" }
  }
}

run "a_certificate_is_named_by_its_arn" {
  command         = plan
  expect_failures = [var.certificate_arn]

  variables {
    certificate_arn = "llm.example.com"
  }
}

run "numbers_out_of_bounds" {
  command         = plan
  expect_failures = [var.serve_port, var.requests_per_address, var.idle_timeout_s, var.allowed_cidrs]

  variables {
    serve_port           = 80
    requests_per_address = 1
    idle_timeout_s       = 5000
    allowed_cidrs        = ["203.0.113.0"]
  }
}
