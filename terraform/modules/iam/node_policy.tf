# What every node may do, and all that a worker may do.

data "aws_iam_policy_document" "node" {
  statement {
    sid       = "ReadWeights"
    actions   = ["s3:GetObject"]
    resources = ["${var.weights_bucket_arn}/*"]
  }

  statement {
    sid       = "ReadConfig"
    actions   = ["s3:GetObject"]
    resources = [for folder in ["cluster", "serve", "wheels"] : "${var.config_bucket_arn}/${folder}/*"]
  }

  # Also turns "access denied" into "no such key" for what isn't there.
  statement {
    sid       = "ListBuckets"
    actions   = ["s3:ListBucket"]
    resources = [var.weights_bucket_arn, var.config_bucket_arn]
  }

  statement {
    sid       = "ReadToken"
    actions   = ["secretsmanager:GetSecretValue"]
    resources = [var.ray_token_secret_arn]
  }

  statement {
    sid       = "ReadParameters"
    actions   = ["ssm:GetParameter"]
    resources = ["arn:${local.partition}:ssm:${var.region}:${local.account}:parameter/headwater/${var.name}/*"]
  }

  statement {
    sid       = "Decrypt"
    actions   = ["kms:Decrypt"]
    resources = [var.kms_key_arn]

    condition {
      test     = "StringEquals"
      variable = "kms:ViaService"
      values   = [for service in ["ecr", "s3", "secretsmanager"] : "${service}.${var.region}.amazonaws.com"]
    }
  }

  statement {
    sid       = "WriteLogs"
    actions   = ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"]
    resources = [var.log_group_arn, "${var.log_group_arn}:*"]
  }

  # Metrics have no resource, only a namespace.
  statement {
    sid       = "WriteMetrics"
    actions   = ["cloudwatch:PutMetricData"]
    resources = ["*"]

    condition {
      test     = "StringEquals"
      variable = "cloudwatch:namespace"
      values   = ["CWAgent", "Headwater"]
    }
  }

  statement {
    sid       = "PullImages"
    actions   = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    resources = [var.repository_arn]
  }

  # Of the registry as a whole; what it opens, the statement before says.
  statement {
    sid       = "SignInToRegistry"
    actions   = ["ecr:GetAuthorizationToken"]
    resources = ["*"]
  }
}
