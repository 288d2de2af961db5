# Nobody comes without TLS, and into the bucket of logs only those who log.

resource "aws_s3_bucket_policy" "this" {
  for_each = local.bucket_names

  bucket = aws_s3_bucket.this[each.key].id
  policy = data.aws_iam_policy_document.bucket[each.key].json

  depends_on = [aws_s3_bucket_public_access_block.this]
}

data "aws_iam_policy_document" "bucket" {
  for_each = local.bucket_arns

  statement {
    sid       = "OnlyTls"
    effect    = "Deny"
    actions   = ["s3:*"]
    resources = [each.value, "${each.value}/*"]

    principals {
      type        = "AWS"
      identifiers = ["*"]
    }

    condition {
      test     = "Bool"
      variable = "aws:SecureTransport"
      values   = ["false"]
    }
  }

  dynamic "statement" {
    for_each = each.key == "logs" ? { S3Logs = "logging.s3.amazonaws.com" } : {}

    content {
      sid       = statement.key
      actions   = ["s3:PutObject"]
      resources = ["${each.value}/*"]

      principals {
        type        = "Service"
        identifiers = [statement.value]
      }

      condition {
        test     = "StringEquals"
        variable = "aws:SourceAccount"
        values   = [local.account]
      }

      condition {
        test     = "ArnLike"
        variable = "aws:SourceArn"
        values   = [local.bucket_arns["weights"], local.bucket_arns["config"]]
      }
    }
  }

  dynamic "statement" {
    for_each = each.key == "logs" ? { LoadBalancerLogs = "logdelivery.elasticloadbalancing.amazonaws.com" } : {}

    content {
      sid       = statement.key
      actions   = ["s3:PutObject"]
      resources = ["${each.value}/alb/AWSLogs/${local.account}/*"]

      principals {
        type        = "Service"
        identifiers = [statement.value]
      }

      condition {
        test     = "ArnLike"
        variable = "aws:SourceArn"
        values = [
          "arn:${data.aws_partition.current.partition}:elasticloadbalancing:${local.region}:${local.account}:loadbalancer/*",
        ]
      }
    }
  }
}
