# Images of this project's containers.

locals {
  tags = { ray-cluster-name = var.name }
}

resource "aws_ecr_repository" "this" {
  name                 = "${var.name}/headwater"
  image_tag_mutability = "IMMUTABLE" # a tag that was tested stays what was tested
  force_delete         = var.force_destroy
  tags                 = local.tags

  encryption_configuration {
    encryption_type = "KMS"
    kms_key         = var.kms_key_arn
  }

  image_scanning_configuration {
    scan_on_push = true
  }
}

resource "aws_ecr_lifecycle_policy" "this" {
  repository = aws_ecr_repository.this.name

  policy = jsonencode({
    rules = [
      {
        rulePriority = 1
        description  = "What lost its tag, or never had one."
        selection    = { tagStatus = "untagged", countType = "sinceImagePushed", countUnit = "days", countNumber = 1 }
        action       = { type = "expire" }
      },
      {
        rulePriority = 2
        description  = "All but the newest images."
        selection    = { tagStatus = "any", countType = "imageCountMoreThan", countNumber = var.num_images }
        action       = { type = "expire" }
      },
    ]
  })
}
