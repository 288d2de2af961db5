# The head's name: whichever instance is the head registers its address, and nodes look it up.

resource "aws_service_discovery_private_dns_namespace" "this" {
  name        = "${var.name}.internal"
  description = "Names within the Ray cluster ${var.name}."
  vpc         = aws_vpc.this.id
  tags        = local.tags
}

resource "aws_service_discovery_service" "head" {
  name          = "head"
  description   = "Head of the Ray cluster ${var.name}."
  force_destroy = true # a head never takes its address out again
  tags          = local.tags

  dns_config {
    namespace_id   = aws_service_discovery_private_dns_namespace.this.id
    routing_policy = "MULTIVALUE"

    dns_records {
      type = "A"
      ttl  = 10 # s that nodes go on asking a head that was replaced
    }
  }
}
