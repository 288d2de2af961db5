mock_provider "aws" {
  mock_resource "aws_sns_topic" {
    defaults = {
      arn = "arn:aws:sns:us-east-1:111122223333:river-alarms"
    }
  }
}

variables {
  name                    = "river"
  region                  = "us-east-1"
  kms_key_arn             = "arn:aws:kms:us-east-1:111122223333:key/0"
  alb_arn_suffix          = "app/river/0"
  target_group_arn_suffix = "targetgroup/river-serve/0"
  emails                  = ["someone@example.com"]
  prometheus              = true
}

run "every_alarm_reaches_somebody" {
  command = apply

  assert {
    condition     = alltrue([for alarm in aws_cloudwatch_metric_alarm.this : alarm.alarm_actions == toset([aws_sns_topic.alarms.arn])])
    error_message = "An alarm that tells nobody is none."
  }

  assert {
    condition     = aws_cloudwatch_metric_alarm.this["no-head"].treat_missing_data == "breaching"
    error_message = "A head that isn't there sends no figures."
  }
}

run "rules_hold_the_targets" {
  command = plan

  variables {
    ttft_target_s = 1.5
  }

  assert {
    condition     = strcontains(output.alert_rules, "> 1.5") && strcontains(output.alert_rules, "> 0.04")
    error_message = "Targets stand in the rules."
  }

  assert {
    condition     = aws_prometheus_rule_group_namespace.this[0].data == output.alert_rules
    error_message = "The workspace has the same rules."
  }
}

run "without_a_workspace" {
  command = plan

  variables {
    prometheus = false
  }

  assert {
    condition     = length(aws_prometheus_workspace.this) == 0 && output.workspace_endpoint == null
    error_message = "Nothing of Amazon's Prometheus."
  }
}

run "what_is_no_address_or_target" {
  command         = plan
  expect_failures = [var.emails, var.ttft_target_s, var.tpot_target_s]

  variables {
    emails        = ["someone"]
    ttft_target_s = 0
    tpot_target_s = -1
  }
}
