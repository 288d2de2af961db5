locals {
  # AWS's own rules, and those of them that only count: a prompt is longer than 8 KB, and may well speak of
  # scripts, files and addresses, which is what these look for in bodies.
  managed_rules = {
    AWSManagedRulesAmazonIpReputationList = []
    AWSManagedRulesKnownBadInputsRuleSet  = []
    AWSManagedRulesCommonRuleSet = [
      "SizeRestrictions_BODY", "CrossSiteScripting_BODY", "GenericLFI_BODY", "GenericRFI_BODY", "EC2MetaDataSSRF_BODY",
    ]
  }
}

resource "aws_wafv2_web_acl" "this" {
  name        = var.name
  description = "In front of ${var.name}."
  scope       = "REGIONAL"
  tags        = local.tags

  default_action {
    allow {}
  }

  rule {
    name     = "requests-per-address"
    priority = 0

    action {
      block {}
    }

    statement {
      rate_based_statement {
        limit              = var.requests_per_address
        aggregate_key_type = "IP"
      }
    }

    visibility_config {
      metric_name                = "${var.name}-rate"
      cloudwatch_metrics_enabled = true
      sampled_requests_enabled   = false # they may hold prompts and keys
    }
  }

  dynamic "rule" {
    for_each = keys(local.managed_rules)

    content {
      name     = rule.value
      priority = 1 + rule.key

      override_action {
        none {}
      }

      statement {
        managed_rule_group_statement {
          name        = rule.value
          vendor_name = "AWS"

          dynamic "rule_action_override" {
            for_each = local.managed_rules[rule.value]

            content {
              name = rule_action_override.value

              action_to_use {
                count {}
              }
            }
          }
        }
      }

      visibility_config {
        metric_name                = "${var.name}-${rule.value}"
        cloudwatch_metrics_enabled = true
        sampled_requests_enabled   = false
      }
    }
  }

  visibility_config {
    metric_name                = var.name
    cloudwatch_metrics_enabled = true
    sampled_requests_enabled   = false
  }
}

resource "aws_wafv2_web_acl_association" "this" {
  resource_arn = aws_lb.this.arn
  web_acl_arn  = aws_wafv2_web_acl.this.arn
}

resource "aws_cloudwatch_log_group" "firewall" {
  name              = "aws-waf-logs-${var.name}" # the firewall writes to no other name
  retention_in_days = var.log_retention_days
  kms_key_id        = var.kms_key_arn
  tags              = local.tags
}

resource "aws_wafv2_web_acl_logging_configuration" "this" {
  resource_arn            = aws_wafv2_web_acl.this.arn
  log_destination_configs = [aws_cloudwatch_log_group.firewall.arn]

  dynamic "redacted_fields" {
    for_each = toset(["authorization", "x-api-key"])

    content {
      single_header {
        name = redacted_fields.value
      }
    }
  }
}
