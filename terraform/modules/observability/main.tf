# Who is told when, and where to look: alarms on what AWS measures.

locals {
  tags = { ray-cluster-name = var.name }

  balancer = { LoadBalancer = var.alb_arn_suffix }
  serve    = { LoadBalancer = var.alb_arn_suffix, TargetGroup = var.target_group_arn_suffix }

  alarms = {
    no-head = {
      description = "No head answers health checks: nobody is served. Look at its group and at /headwater/${var.name}."
      namespace   = "AWS/ApplicationELB"
      metric      = "HealthyHostCount"
      dimensions  = local.serve
      statistic   = "Maximum"
      comparison  = "LessThanThreshold"
      threshold   = 1
      periods     = 3
      missing     = "breaching"
    }
    errors = {
      description = "Answers of 500 and above, 503 with retry-after among them: the fleet is too small, or broken."
      namespace   = "AWS/ApplicationELB"
      metric      = "HTTPCode_Target_5XX_Count"
      dimensions  = local.balancer
      statistic   = "Sum"
      comparison  = "GreaterThanThreshold"
      threshold   = 50
      periods     = 5
      missing     = "notBreaching"
    }
    balancer-errors = {
      description = "The load balancer itself answers 502 to 504: no connection to the head, or none in time."
      namespace   = "AWS/ApplicationELB"
      metric      = "HTTPCode_ELB_5XX_Count"
      dimensions  = local.balancer
      statistic   = "Sum"
      comparison  = "GreaterThanThreshold"
      threshold   = 10
      periods     = 5
      missing     = "notBreaching"
    }
  }
}

resource "aws_sns_topic" "alarms" {
  name              = "${var.name}-alarms"
  kms_master_key_id = var.kms_key_arn
  tags              = local.tags
}

resource "aws_sns_topic_subscription" "email" {
  for_each = var.emails

  topic_arn = aws_sns_topic.alarms.arn
  protocol  = "email"
  endpoint  = each.value
}

resource "aws_cloudwatch_metric_alarm" "this" {
  for_each = local.alarms

  alarm_name          = "${var.name}-${each.key}"
  alarm_description   = each.value.description
  namespace           = each.value.namespace
  metric_name         = each.value.metric
  dimensions          = each.value.dimensions
  statistic           = each.value.statistic
  comparison_operator = each.value.comparison
  threshold           = each.value.threshold
  evaluation_periods  = each.value.periods
  period              = 60
  treat_missing_data  = each.value.missing
  alarm_actions       = [aws_sns_topic.alarms.arn]
  ok_actions          = [aws_sns_topic.alarms.arn]
  tags                = local.tags
}
