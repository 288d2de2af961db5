output "head_profile" {
  description = "Instance profile of the head, and its role."
  value = {
    name     = aws_iam_instance_profile.node["head"].name
    arn      = aws_iam_instance_profile.node["head"].arn
    role_arn = aws_iam_role.node["head"].arn
  }

  # A node that starts without its policies fails.
  depends_on = [aws_iam_role_policy.node, aws_iam_role_policy.head, aws_iam_role_policy_attachment.ssm]
}

output "worker_profile" {
  description = "Instance profile of the workers, and its role."
  value = {
    name     = aws_iam_instance_profile.node["worker"].name
    arn      = aws_iam_instance_profile.node["worker"].arn
    role_arn = aws_iam_role.node["worker"].arn
  }

  depends_on = [aws_iam_role_policy.node, aws_iam_role_policy_attachment.ssm]
}
