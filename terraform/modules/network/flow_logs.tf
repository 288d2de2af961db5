# Who spoke to whom, as the VPC saw it.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

resource "aws_cloudwatch_log_group" "flow" {
  name              = "/headwater/${var.name}/flow"
  kms_key_id        = var.flow_log_kms_key_arn
  retention_in_days = var.log_retention_days
  tags              = local.tags
}

resource "aws_flow_log" "this" {
  vpc_id                   = aws_vpc.this.id
  traffic_type             = "ALL"
  max_aggregation_interval = 60 # s
  log_destination          = aws_cloudwatch_log_group.flow.arn
  iam_role_arn             = aws_iam_role.flow.arn
  tags                     = merge(local.tags, { Name = var.name })

  depends_on = [aws_iam_role_policy.flow]
}

resource "aws_iam_role" "flow" {
  # Roles are of all regions, clusters of one.
  name               = "${var.name}-${data.aws_region.current.id}-flow"
  description        = "Writes the flow logs of ${var.name}."
  assume_role_policy = data.aws_iam_policy_document.flow_trust.json
  tags               = local.tags
}

data "aws_iam_policy_document" "flow_trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["vpc-flow-logs.amazonaws.com"]
    }

    # Not on behalf of somebody else's flow logs.
    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [data.aws_caller_identity.current.account_id]
    }
  }
}

resource "aws_iam_role_policy" "flow" {
  name   = "flow-logs"
  role   = aws_iam_role.flow.name
  policy = data.aws_iam_policy_document.flow.json
}

locals {
  flow_group_arn = join(":", [
    "arn", data.aws_partition.current.partition, "logs", data.aws_region.current.id,
    data.aws_caller_identity.current.account_id, "log-group", "/headwater/${var.name}/flow",
  ])
}

data "aws_iam_policy_document" "flow" {
  statement {
    sid       = "Write"
    actions   = ["logs:CreateLogStream", "logs:PutLogEvents", "logs:DescribeLogStreams"]
    resources = [local.flow_group_arn, "${local.flow_group_arn}:*"]
  }

  # Flow logs look for their group by listing, which knows no narrower resource.
  statement {
    sid       = "Find"
    actions   = ["logs:DescribeLogGroups"]
    resources = ["*"]
  }
}
