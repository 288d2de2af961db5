# Ray's tables outside the head, so that a new head goes on with the old one's cluster.

resource "aws_security_group" "memory_db_client" {
  count = var.memory_db == null ? 0 : 1

  name        = "${var.name}-memory-db-client"
  description = "Whoever may reach Ray's tables: the head."
  vpc_id      = var.memory_db.vpc_id
  tags        = { Name = "${var.name}-memory-db-client", ray-cluster-name = var.name }
}

resource "aws_security_group" "memory_db" {
  count = var.memory_db == null ? 0 : 1

  name        = "${var.name}-memory-db"
  description = "Ray's tables."
  vpc_id      = var.memory_db.vpc_id
  tags        = { Name = "${var.name}-memory-db", ray-cluster-name = var.name }
}

resource "aws_vpc_security_group_ingress_rule" "memory_db" {
  count = var.memory_db == null ? 0 : 1

  description                  = "The head reads and writes Ray's tables."
  security_group_id            = aws_security_group.memory_db[0].id
  referenced_security_group_id = aws_security_group.memory_db_client[0].id
  ip_protocol                  = "tcp"
  from_port                    = 6379
  to_port                      = 6379
  tags                         = { ray-cluster-name = var.name }
}

resource "aws_vpc_security_group_egress_rule" "memory_db_client" {
  count = var.memory_db == null ? 0 : 1

  description                  = "The head reads and writes Ray's tables."
  security_group_id            = aws_security_group.memory_db_client[0].id
  referenced_security_group_id = aws_security_group.memory_db[0].id
  ip_protocol                  = "tcp"
  from_port                    = 6379
  to_port                      = 6379
  tags                         = { ray-cluster-name = var.name }
}

resource "aws_memorydb_subnet_group" "this" {
  count = var.memory_db == null ? 0 : 1

  name       = "${var.name}-ray"
  subnet_ids = values(var.memory_db.subnets)
  tags       = { ray-cluster-name = var.name }
}

resource "aws_memorydb_cluster" "this" {
  count = var.memory_db == null ? 0 : 1

  name        = "${var.name}-ray"
  description = "Tables of the Ray cluster ${var.name}."
  node_type   = var.memory_db.node_type
  # A password would lie in Terraform's state. Only the head's security group gets this far.
  acl_name                 = "open-access"
  engine_version           = "7.1"
  num_shards               = 1 # Ray speaks to one
  num_replicas_per_shard   = 1
  subnet_group_name        = aws_memorydb_subnet_group.this[0].name
  security_group_ids       = [aws_security_group.memory_db[0].id]
  tls_enabled              = true
  kms_key_arn              = var.kms_key_arn
  snapshot_retention_limit = 1
  tags                     = { ray-cluster-name = var.name }
}
