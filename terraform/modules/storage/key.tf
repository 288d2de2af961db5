# One key for all of the cluster.

resource "aws_kms_key" "this" {
  description             = "Encrypts the Ray cluster ${var.name}."
  enable_key_rotation     = true
  deletion_window_in_days = var.force_destroy ? 7 : 30
  tags                    = merge(local.tags, { Name = var.name })
}

resource "aws_kms_alias" "this" {
  name          = "alias/headwater/${var.name}"
  target_key_id = aws_kms_key.this.key_id
}

resource "aws_kms_key_policy" "this" {
  key_id = aws_kms_key.this.key_id
  policy = data.aws_iam_policy_document.key.json
}

locals {
  # Services that encrypt what others are to read: the log groups, and messages that alarms and events send.
  message_services = ["cloudwatch.amazonaws.com", "events.amazonaws.com"]
  # AWS's own roles, in whose name groups and fleets attach encrypted volumes.
  launching_roles = [
    for role in [
      "autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling",
      "ec2fleet.amazonaws.com/AWSServiceRoleForEC2Fleet",
      "spot.amazonaws.com/AWSServiceRoleForEC2Spot",
    ] : "arn:${data.aws_partition.current.partition}:iam::${local.account}:role/aws-service-role/${role}"
  ]
}

# In a key's own policy, the resource "*" is the key.
data "aws_iam_policy_document" "key" {
  # Without it, nobody could ever change the policy again. What roles may do, their policies say.
  statement {
    sid       = "Account"
    actions   = ["kms:*"]
    resources = ["*"]

    principals {
      type        = "AWS"
      identifiers = ["arn:${data.aws_partition.current.partition}:iam::${local.account}:root"]
    }
  }

  statement {
    sid       = "LogGroups"
    actions   = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey"]
    resources = ["*"]

    principals {
      type        = "Service"
      identifiers = ["logs.${local.region}.amazonaws.com"]
    }

    condition {
      test     = "ArnLike"
      variable = "kms:EncryptionContext:aws:logs:arn"
      values = [
        for group in ["/headwater/${var.name}", "/headwater/${var.name}/*", "aws-waf-logs-${var.name}"] :
        "arn:${data.aws_partition.current.partition}:logs:${local.region}:${local.account}:log-group:${group}"
      ]
    }
  }

  statement {
    sid       = "Messages"
    actions   = ["kms:Decrypt", "kms:GenerateDataKey*"]
    resources = ["*"]

    principals {
      type        = "Service"
      identifiers = local.message_services
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account]
    }
  }

  # Named in a condition, since a principal must exist, and AWS makes these roles at first use.
  statement {
    sid       = "Volumes"
    actions   = ["kms:Encrypt", "kms:Decrypt", "kms:ReEncrypt*", "kms:GenerateDataKey*", "kms:DescribeKey", "kms:CreateGrant"]
    resources = ["*"]

    principals {
      type        = "AWS"
      identifiers = ["*"]
    }

    condition {
      test     = "StringEquals"
      variable = "kms:CallerAccount"
      values   = [local.account]
    }

    condition {
      test     = "ArnEquals"
      variable = "aws:PrincipalArn"
      values   = local.launching_roles
    }
  }
}
