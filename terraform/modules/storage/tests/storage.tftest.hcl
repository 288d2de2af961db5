# Buckets, key, token and replication. The real provider renders policies, and plans without asking AWS.

provider "aws" {
  region                      = "us-east-1"
  access_key                  = "testing"
  secret_key                  = "testing"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_requesting_account_id  = true
}

override_data {
  target = data.aws_caller_identity.current
  values = { account_id = "123456789012" }
}

variables {
  name = "river"
}

run "buckets_are_closed_encrypted_and_versioned" {
  command = plan

  assert {
    condition     = alltrue([for kind, bucket in aws_s3_bucket.this : can(regex("^river-${kind}-[0-9a-f]{12}$", bucket.bucket)) && !bucket.force_destroy]) && length(aws_s3_bucket.this) == 3
    error_message = "Names hold the cluster's name, and content is not lost with the cluster."
  }

  assert {
    condition     = alltrue([for block in aws_s3_bucket_public_access_block.this : block.block_public_acls && block.block_public_policy && block.ignore_public_acls && block.restrict_public_buckets])
    error_message = "No bucket can be made public."
  }

  assert {
    condition     = alltrue([for versioning in aws_s3_bucket_versioning.this : versioning.versioning_configuration[0].status == "Enabled"])
    error_message = "All keep versions."
  }

  assert {
    condition = alltrue([
      for kind, encryption in aws_s3_bucket_server_side_encryption_configuration.this :
      one(one(encryption.rule).apply_server_side_encryption_by_default).sse_algorithm == (kind == "logs" ? "AES256" : "aws:kms")
    ])
    error_message = "With the cluster's key, but for logs, which a load balancer writes."
  }
}

run "nobody_comes_without_tls_and_only_loggers_write_logs" {
  command = plan

  assert {
    condition = alltrue([
      for kind, policy in aws_s3_bucket_policy.this : anytrue([
        for statement in jsondecode(policy.policy).Statement :
        statement.Effect == "Deny" && statement.Action == "s3:*" && try(statement.Condition.Bool["aws:SecureTransport"], "") == "false"
      ])
    ])
    error_message = "Requests without TLS are denied."
  }

  assert {
    condition = jsonencode({
      for kind, policy in aws_s3_bucket_policy.this : kind => [
        for statement in jsondecode(policy.policy).Statement : statement.Principal.Service if statement.Effect == "Allow"
      ]
      }) == jsonencode({
      config  = []
      logs    = ["logging.s3.amazonaws.com", "logdelivery.elasticloadbalancing.amazonaws.com"]
      weights = []
    })
    error_message = "Policies allow logging, and nothing else."
  }
}

run "the_key_rotates_and_is_the_accounts" {
  command = plan

  assert {
    condition     = aws_kms_key.this.enable_key_rotation && aws_kms_key.this.deletion_window_in_days == 30
    error_message = "Rotated, and long to be had back."
  }

  assert {
    condition = alltrue([
      for statement in jsondecode(aws_kms_key_policy.this.policy).Statement :
      length(keys(try(statement.Condition, {}))) > 0 if statement.Sid != "Account"
    ])
    error_message = "Services and AWS's roles are bound to this account."
  }
}

run "the_token_has_no_value_in_terraform" {
  command = plan

  assert {
    condition     = aws_secretsmanager_secret.ray_token.name == "river/ray-token" && aws_secretsmanager_secret.ray_token.recovery_window_in_days == 7
    error_message = "Only the secret is made."
  }

  assert {
    condition     = aws_cloudwatch_log_group.nodes.name == "/headwater/river" && aws_cloudwatch_log_group.nodes.retention_in_days == 365
    error_message = "Nodes' logs have their group."
  }
}

run "leftovers_go_unless_one_says_otherwise" {
  command = plan

  assert {
    condition     = length(aws_s3_bucket_lifecycle_configuration.this) == 3 && alltrue([for rules in aws_s3_bucket_lifecycle_configuration.this : rules.rule[0].abort_incomplete_multipart_upload[0].days_after_initiation == 1])
    error_message = "Uploads that were left off end after a day."
  }

  assert {
    condition     = length(aws_s3_bucket_lifecycle_configuration.this["weights"].rule[0].expiration) == 0 && aws_s3_bucket_lifecycle_configuration.this["logs"].rule[0].expiration[0].days == 365
    error_message = "Only logs grow old."
  }
}

run "a_cluster_to_throw_away" {
  command = plan

  variables {
    force_destroy   = true
    lifecycle_rules = false
  }

  assert {
    condition     = length(aws_s3_bucket_lifecycle_configuration.this) == 0 && alltrue([for bucket in aws_s3_bucket.this : bucket.force_destroy])
    error_message = "No rules, and destroy empties the buckets."
  }

  assert {
    condition     = aws_secretsmanager_secret.ray_token.recovery_window_in_days == 0 && aws_kms_key.this.deletion_window_in_days == 7
    error_message = "Its names are free again at once."
  }
}

run "without_replication_nothing_is_made_for_it" {
  command = plan

  assert {
    condition     = length(aws_s3_bucket_replication_configuration.weights) == 0 && length(aws_iam_role.replication) == 0
    error_message = "Replication is off by default."
  }
}

run "named_models_are_replicated_each_by_its_rule" {
  command = plan

  variables {
    models = ["llama-70b", "qwen-32b"]
    replication = {
      bucket_arn  = "arn:aws:s3:::river-weights-0123456789ab"
      kms_key_arn = "arn:aws:kms:us-west-2:123456789012:key/00000000-0000-0000-0000-000000000000"
    }
  }

  assert {
    condition     = jsonencode([for rule in aws_s3_bucket_replication_configuration.weights[0].rule : [rule.id, rule.filter[0].prefix]]) == jsonencode([["llama-70b", "llama-70b/"], ["qwen-32b", "qwen-32b/"]])
    error_message = "Below the model's own prefix, with a slash: llama-70b is not llama-70b-chat."
  }

  assert {
    condition = alltrue([
      for rule in aws_s3_bucket_replication_configuration.weights[0].rule :
      rule.destination[0].encryption_configuration[0].replica_kms_key_id == var.replication.kms_key_arn
    ])
    error_message = "Copies are encrypted with the other region's key."
  }
}

run "without_names_all_models_are_replicated" {
  command = plan

  variables {
    replication = {
      bucket_arn  = "arn:aws:s3:::river-weights-0123456789ab"
      kms_key_arn = "arn:aws:kms:us-west-2:123456789012:key/00000000-0000-0000-0000-000000000000"
    }
  }

  assert {
    condition     = jsonencode([for rule in aws_s3_bucket_replication_configuration.weights[0].rule : [rule.id, rule.filter[0].prefix]]) == jsonencode([["all", ""]])
    error_message = "One rule for the whole bucket."
  }
}
