provider "aws" {
  region = var.region

  default_tags {
    tags = {
      ray-cluster-name = var.name
      managed-by       = "terraform"
    }
  }
}
