# What a VPC refuses.

mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { id = "us-east-1", name = "us-east-1" }
  }

  mock_data "aws_iam_policy_document" {
    defaults = { json = "{}" }
  }
}

variables {
  name                 = "river"
  zones                = ["us-east-1a", "us-east-1b", "us-east-1c"]
  flow_log_kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
}

run "a_name_with_capitals" {
  command = plan

  variables {
    name = "River"
  }

  expect_failures = [var.name]
}

run "a_name_that_is_too_long" {
  command = plan

  variables {
    name = "a23456789012345678901234567890123"
  }

  expect_failures = [var.name]
}

run "addresses_without_a_length" {
  command = plan

  variables {
    cidr = "10.40.0.0"
  }

  expect_failures = [var.cidr]
}

run "an_address_inside_the_block" {
  command = plan

  variables {
    cidr = "10.40.0.1/16"
  }

  expect_failures = [var.cidr]
}

run "a_block_that_is_too_large" {
  command = plan

  variables {
    cidr = "10.0.0.0/15"
  }

  expect_failures = [var.cidr]
}

run "a_block_that_is_too_small" {
  command = plan

  variables {
    cidr = "10.40.0.0/20"
  }

  expect_failures = [var.cidr]
}

run "a_block_of_somebody_else" {
  command = plan

  variables {
    cidr = "172.32.0.0/16"
  }

  expect_failures = [var.cidr]
}

run "one_zone" {
  command = plan

  variables {
    zones = ["us-east-1a"]
  }

  expect_failures = [var.zones]
}

run "the_same_zone_twice" {
  command = plan

  variables {
    zones = ["us-east-1a", "us-east-1a"]
  }

  expect_failures = [var.zones]
}

run "seven_zones" {
  command = plan

  variables {
    zones = [for letter in ["a", "b", "c", "d", "e", "f", "g"] : "us-east-1${letter}"]
  }

  expect_failures = [var.zones]
}

run "a_region_for_a_zone" {
  command = plan

  variables {
    zones = ["us-east-1", "us-east-1b"]
  }

  expect_failures = [var.zones]
}

run "zones_of_two_regions" {
  command = plan

  variables {
    zones = ["us-east-1a", "us-east-2b"]
  }

  expect_failures = [var.zones]
}

run "zones_of_another_region_than_the_providers" {
  command = plan

  variables {
    zones = ["eu-west-1a", "eu-west-1b"]
  }

  expect_failures = [data.aws_region.current]
}

run "a_retention_that_cloudwatch_does_not_offer" {
  command = plan

  variables {
    log_retention_days = 100
  }

  expect_failures = [var.log_retention_days]
}
