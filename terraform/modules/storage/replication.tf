# Models go to another region's cluster, too.

locals {
  # One rule for all of the bucket, or one for each model.
  replicated = var.replication == null ? [] : length(var.models) == 0 ? [""] : [for model in var.models : "${model}/"]
}

resource "aws_s3_bucket_replication_configuration" "weights" {
  count = var.replication == null ? 0 : 1

  bucket = aws_s3_bucket.this["weights"].id
  role   = aws_iam_role.replication[0].arn

  dynamic "rule" {
    for_each = local.replicated

    content {
      id       = rule.value == "" ? "all" : trimsuffix(rule.value, "/")
      priority = rule.key
      status   = "Enabled"

      filter {
        prefix = rule.value
      }

      # What is deleted here by mistake stays there.
      delete_marker_replication {
        status = "Disabled"
      }

      source_selection_criteria {
        sse_kms_encrypted_objects {
          status = "Enabled"
        }
      }

      destination {
        bucket        = var.replication.bucket_arn
        storage_class = "STANDARD"

        encryption_configuration {
          replica_kms_key_id = var.replication.kms_key_arn
        }
      }
    }
  }

  depends_on = [aws_s3_bucket_versioning.this, aws_iam_role_policy.replication]
}

resource "aws_iam_role" "replication" {
  count = var.replication == null ? 0 : 1

  name               = "${var.name}-${local.region}-replication"
  description        = "Copies the models of ${var.name} to another region."
  assume_role_policy = data.aws_iam_policy_document.replication_trust.json
  tags               = local.tags
}

data "aws_iam_policy_document" "replication_trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["s3.amazonaws.com"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:SourceAccount"
      values   = [local.account]
    }
  }
}

resource "aws_iam_role_policy" "replication" {
  count = var.replication == null ? 0 : 1

  name   = "replication"
  role   = aws_iam_role.replication[0].name
  policy = data.aws_iam_policy_document.replication[0].json
}

data "aws_iam_policy_document" "replication" {
  count = var.replication == null ? 0 : 1

  statement {
    sid       = "Look"
    actions   = ["s3:GetReplicationConfiguration", "s3:ListBucket"]
    resources = [local.bucket_arns["weights"]]
  }

  statement {
    sid       = "Read"
    actions   = ["s3:GetObjectVersionForReplication", "s3:GetObjectVersionAcl", "s3:GetObjectVersionTagging"]
    resources = ["${local.bucket_arns["weights"]}/*"]
  }

  statement {
    sid       = "Write"
    actions   = ["s3:ReplicateObject", "s3:ReplicateTags"]
    resources = ["${var.replication.bucket_arn}/*"]
  }

  statement {
    sid       = "Decrypt"
    actions   = ["kms:Decrypt"]
    resources = [aws_kms_key.this.arn]
  }

  statement {
    sid       = "Encrypt"
    actions   = ["kms:Encrypt", "kms:GenerateDataKey"]
    resources = [var.replication.kms_key_arn]
  }
}
