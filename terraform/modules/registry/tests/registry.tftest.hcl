# A repository, and what it refuses.

mock_provider "aws" {}

variables {
  name        = "river"
  kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
}

run "images_are_encrypted_scanned_and_stay_what_they_are" {
  assert {
    condition     = aws_ecr_repository.this.name == "river/headwater" && aws_ecr_repository.this.image_tag_mutability == "IMMUTABLE" && !aws_ecr_repository.this.force_delete
    error_message = "Tags stay, and images are not lost with the cluster unless one says so."
  }

  assert {
    condition     = aws_ecr_repository.this.encryption_configuration[0].encryption_type == "KMS" && aws_ecr_repository.this.encryption_configuration[0].kms_key == var.kms_key_arn
    error_message = "With the cluster's key."
  }

  assert {
    condition     = aws_ecr_repository.this.image_scanning_configuration[0].scan_on_push
    error_message = "Images are scanned."
  }

  assert {
    condition     = aws_ecr_repository.this.tags["ray-cluster-name"] == "river"
    error_message = "All of a cluster carries its tag."
  }
}

run "old_images_go" {
  variables {
    num_images    = 3
    force_destroy = true
  }

  assert {
    condition     = jsonencode([for rule in jsondecode(aws_ecr_lifecycle_policy.this.policy).rules : "${rule.selection.tagStatus} ${rule.selection.countNumber}"]) == jsonencode(["untagged 1", "any 3"])
    error_message = "Without a tag after a day, others beyond the number."
  }

  assert {
    condition     = aws_ecr_repository.this.force_delete
    error_message = "force_destroy deletes images, too."
  }
}

run "a_name_that_begins_with_a_digit" {
  command = plan

  variables {
    name = "7river"
  }

  expect_failures = [var.name]
}

run "no_image" {
  command = plan

  variables {
    num_images = 0
  }

  expect_failures = [var.num_images]
}

run "half_an_image" {
  command = plan

  variables {
    num_images = 1.5
  }

  expect_failures = [var.num_images]
}
