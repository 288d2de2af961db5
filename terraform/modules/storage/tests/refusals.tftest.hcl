# What the module of storage refuses.

mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { id = "us-east-1", name = "us-east-1" }
  }

  mock_data "aws_iam_policy_document" {
    defaults = { json = "{}" }
  }
}

variables {
  name = "river"
}

run "a_name_that_ends_in_a_hyphen" {
  command = plan

  variables {
    name = "river-"
  }

  expect_failures = [var.name]
}

run "a_model_with_a_slash" {
  command = plan

  variables {
    models = ["org/model"]
  }

  expect_failures = [var.models]
}

run "the_same_model_twice" {
  command = plan

  variables {
    models = ["llama-70b", "llama-70b"]
  }

  expect_failures = [var.models]
}

run "more_models_than_rules" {
  command = plan

  variables {
    models = [for number in range(1001) : "model-${number}"]
  }

  expect_failures = [var.models]
}

run "a_buckets_name_for_its_arn" {
  command = plan

  variables {
    replication = { bucket_arn = "river-weights", kms_key_arn = "arn:aws:kms:us-west-2:123456789012:key/00000000-0000-0000-0000-000000000000" }
  }

  expect_failures = [var.replication]
}

run "an_alias_for_a_key" {
  command = plan

  variables {
    replication = { bucket_arn = "arn:aws:s3:::river-weights", kms_key_arn = "arn:aws:kms:us-west-2:123456789012:alias/river" }
  }

  expect_failures = [var.replication]
}

run "a_retention_that_cloudwatch_does_not_offer" {
  command = plan

  variables {
    log_retention_days = 0
  }

  expect_failures = [var.log_retention_days]
}
