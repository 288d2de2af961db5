# What AWS says of the cluster's instances ahead of time, kept for whoever asks: a queue.
# Nodes don't need it, since each sees its own notices; it tells of those that saw none.

locals {
  tags = { ray-cluster-name = var.name }

  rules = {
    spot-interruption = {
      description = "A spot instance will be taken in two minutes."
      pattern     = { source = ["aws.ec2"], detail-type = ["EC2 Spot Instance Interruption Warning"] }
    }
    rebalance = {
      description = "A spot instance is more likely to be taken."
      pattern     = { source = ["aws.ec2"], detail-type = ["EC2 Instance Rebalance Recommendation"] }
    }
    state-change = {
      description = "An instance ends, or has."
      pattern = {
        source      = ["aws.ec2"]
        detail-type = ["EC2 Instance State-change Notification"]
        detail      = { state = ["shutting-down", "stopping", "terminated"] }
      }
    }
    health = {
      description = "Maintenance and failures of the hosts below."
      pattern = {
        source      = ["aws.health"]
        detail-type = ["AWS Health Event"]
        detail      = { service = ["EC2"] }
      }
    }
  }
}

resource "aws_cloudwatch_event_rule" "this" {
  for_each = local.rules

  name          = "${var.name}-${each.key}"
  description   = each.value.description
  event_pattern = jsonencode(each.value.pattern)
  tags          = local.tags
}

resource "aws_cloudwatch_event_target" "this" {
  for_each = local.rules

  rule      = aws_cloudwatch_event_rule.this[each.key].name
  target_id = "queue"
  arn       = aws_sqs_queue.events.arn
}

# Nobody has to read it: what is not read is gone after a day.
resource "aws_sqs_queue" "events" {
  name                       = "${var.name}-events"
  message_retention_seconds  = 86400
  receive_wait_time_seconds  = 20
  visibility_timeout_seconds = 60
  kms_master_key_id          = var.kms_key_arn
  tags                       = local.tags
}

resource "aws_sqs_queue_policy" "events" {
  queue_url = aws_sqs_queue.events.id
  policy    = data.aws_iam_policy_document.queue.json
}

data "aws_iam_policy_document" "queue" {
  statement {
    sid       = "OnlyTheRules"
    actions   = ["sqs:SendMessage"]
    resources = [aws_sqs_queue.events.arn]

    principals {
      type        = "Service"
      identifiers = ["events.amazonaws.com"]
    }

    condition {
      test     = "ArnEquals"
      variable = "aws:SourceArn"
      values   = [for rule in aws_cloudwatch_event_rule.this : rule.arn]
    }
  }

  statement {
    sid       = "OnlyTls"
    effect    = "Deny"
    actions   = ["sqs:*"]
    resources = [aws_sqs_queue.events.arn]

    principals {
      type        = "*"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }
}
