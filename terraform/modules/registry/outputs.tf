output "repository_url" {
  description = "Where images are pushed to and pulled from."
  value       = aws_ecr_repository.this.repository_url
}

output "repository_arn" {
  description = "The repository, as policies name it."
  value       = aws_ecr_repository.this.arn
}
