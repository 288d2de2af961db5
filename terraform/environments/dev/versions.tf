terraform {
  required_version = ">= 1.11, < 2.0"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.100, < 7"
    }
  }

  # The rest is named at `terraform init`: -backend-config=bucket=… -backend-config=key=… -backend-config=region=…
  backend "s3" {
    encrypt      = true
    use_lockfile = true
  }
}
