output "queue_url" {
  description = "Queue of notices of instances."
  value       = aws_sqs_queue.events.url
}

output "queue_arn" {
  description = "The same, as policies name it."
  value       = aws_sqs_queue.events.arn
}
