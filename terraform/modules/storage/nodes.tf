# What nodes share besides buckets: Ray's token, and the place of their logs.

resource "aws_secretsmanager_secret" "ray_token" {
  name                    = "${var.name}/ray-token"
  description             = "Token of the Ray cluster ${var.name}. Its first head writes it; Terraform and its state never have it."
  kms_key_id              = aws_kms_key.this.arn
  recovery_window_in_days = var.force_destroy ? 0 : 7
  tags                    = local.tags
}

resource "aws_cloudwatch_log_group" "nodes" {
  name              = "/headwater/${var.name}"
  kms_key_id        = aws_kms_key.this.arn
  retention_in_days = var.log_retention_days
  tags              = local.tags

  depends_on = [aws_kms_key_policy.this]
}
