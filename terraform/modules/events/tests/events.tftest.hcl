# The real provider with a made-up account: policies are computed, nothing is asked of AWS.
provider "aws" {
  region                      = "us-east-1"
  access_key                  = "none"
  secret_key                  = "none"
  skip_credentials_validation = true
  skip_requesting_account_id  = true
  skip_metadata_api_check     = true
}

variables {
  name        = "river"
  kms_key_arn = "arn:aws:kms:us-east-1:111122223333:key/00000000-0000-0000-0000-000000000000"
}

run "each_kind_of_notice_reaches_the_queue" {
  command = plan

  assert {
    condition     = keys(aws_cloudwatch_event_rule.this) == keys(aws_cloudwatch_event_target.this)
    error_message = "A rule without a target tells nobody."
  }

  assert {
    condition = jsondecode(aws_cloudwatch_event_rule.this["spot-interruption"].event_pattern) == {
      detail-type = ["EC2 Spot Instance Interruption Warning"]
      source      = ["aws.ec2"]
    }
    error_message = "Spot interruptions are matched by their type."
  }
}

run "the_queue_is_encrypted" {
  command = plan

  assert {
    condition     = aws_sqs_queue.events.kms_master_key_id == var.kms_key_arn
    error_message = "By the cluster's key."
  }
}

run "a_name_that_aws_would_refuse" {
  command         = plan
  expect_failures = [var.name]

  variables {
    name = "Big_River"
  }
}
