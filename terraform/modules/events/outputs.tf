output "queue_url" {
  description = "Queue of notices of instances."
  value       = aws_sqs_queue.events.url
}

output "queue_arn" {
  description = "The same, as policies name it."
  value       = aws_sqs_queue.events.arn
}

output "unread_queue_name" {
  description = "Queue of what was received five times and never deleted."
  value       = aws_sqs_queue.unread.name
}
