output "kms_key_arn" {
  description = "Key that encrypts all of the cluster."
  value       = aws_kms_key.this.arn

  # Whoever uses the key may rely on its policy.
  depends_on = [aws_kms_key_policy.this]
}

output "weights_bucket" {
  description = "Bucket of the models."
  value       = { name = aws_s3_bucket.this["weights"].bucket, arn = aws_s3_bucket.this["weights"].arn }
}

output "config_bucket" {
  description = "Bucket of what is deployed, of Ray's autoscaler file and of wheels."
  value       = { name = aws_s3_bucket.this["config"].bucket, arn = aws_s3_bucket.this["config"].arn }
}

output "log_bucket" {
  description = "Bucket of access logs: of the load balancer below alb/, of the other buckets below s3/."
  value       = { name = aws_s3_bucket.this["logs"].bucket, arn = aws_s3_bucket.this["logs"].arn }

  # A load balancer tries to write when its logs are switched on.
  depends_on = [aws_s3_bucket_policy.this]
}

output "ray_token_secret_arn" {
  description = "Secret of Ray's token. Terraform never has its value: the first head makes it."
  value       = aws_secretsmanager_secret.ray_token.arn
}

output "log_group" {
  description = "Log group of the nodes."
  value       = { name = aws_cloudwatch_log_group.nodes.name, arn = aws_cloudwatch_log_group.nodes.arn }
}
