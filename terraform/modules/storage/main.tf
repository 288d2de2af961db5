# Buckets for models, for what is deployed and for access logs.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

data "aws_region" "current" {}

locals {
  tags    = { ray-cluster-name = var.name }
  account = data.aws_caller_identity.current.account_id
  region  = data.aws_region.current.id

  # Names of buckets are the world's: the hash keeps accounts and regions apart and tells neither.
  suffix       = substr(sha256("${local.account}:${local.region}"), 0, 12)
  bucket_names = { for kind in ["weights", "config", "logs"] : kind => "${var.name}-${kind}-${local.suffix}" }
  bucket_arns  = { for kind, name in local.bucket_names : kind => "arn:${data.aws_partition.current.partition}:s3:::${name}" }
}

resource "aws_s3_bucket" "this" {
  for_each = local.bucket_names

  bucket        = each.value
  force_destroy = var.force_destroy
  tags          = merge(local.tags, { Name = each.value })
}

resource "aws_s3_bucket_versioning" "this" {
  for_each = local.bucket_names

  bucket = aws_s3_bucket.this[each.key].id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  for_each = local.bucket_names

  bucket = aws_s3_bucket.this[each.key].id

  rule {
    # A load balancer writes its logs only where S3's own keys encrypt.
    bucket_key_enabled = each.key != "logs"

    apply_server_side_encryption_by_default {
      sse_algorithm     = each.key == "logs" ? "AES256" : "aws:kms"
      kms_master_key_id = each.key == "logs" ? null : aws_kms_key.this.arn
    }
  }
}

resource "aws_s3_bucket_public_access_block" "this" {
  for_each = local.bucket_names

  bucket                  = aws_s3_bucket.this[each.key].id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_ownership_controls" "this" {
  for_each = local.bucket_names

  bucket = aws_s3_bucket.this[each.key].id

  rule {
    object_ownership = "BucketOwnerEnforced"
  }
}

resource "aws_s3_bucket_logging" "this" {
  for_each = toset(["weights", "config"])

  bucket        = aws_s3_bucket.this[each.key].id
  target_bucket = aws_s3_bucket.this["logs"].id
  target_prefix = "s3/${each.key}/"

  depends_on = [aws_s3_bucket_policy.this]
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  for_each = var.lifecycle_rules ? local.bucket_names : {}

  bucket = aws_s3_bucket.this[each.key].id

  rule {
    id     = "leftovers"
    status = "Enabled"

    filter {}

    # Parts of an upload that was never finished cost like objects, and nobody sees them.
    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }

    noncurrent_version_expiration {
      noncurrent_days = 30
    }

    dynamic "expiration" {
      for_each = each.key == "logs" ? [var.log_retention_days] : []

      content {
        days = expiration.value
      }
    }
  }

  depends_on = [aws_s3_bucket_versioning.this]
}
