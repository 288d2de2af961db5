# What nodes may do: the head launches and ends workers of its own cluster, a worker only reads.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  tags      = { ray-cluster-name = var.name }
  account   = data.aws_caller_identity.current.account_id
  partition = data.aws_partition.current.partition
  kinds     = toset(["head", "worker"])

  # Roles are of all regions, clusters of one.
  role_names = { for kind in local.kinds : kind => "${var.name}-${var.region}-${kind}" }
  role_arns  = { for kind, name in local.role_names : kind => "arn:${local.partition}:iam::${local.account}:role/${name}" }
  ec2_arn    = "arn:${local.partition}:ec2:${var.region}:${local.account}"
}

resource "aws_iam_role" "node" {
  for_each = local.role_names

  name               = each.value
  description        = "The ${each.key} of the Ray cluster ${var.name} in ${var.region}."
  assume_role_policy = data.aws_iam_policy_document.trust.json
  tags               = local.tags
}

data "aws_iam_policy_document" "trust" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_instance_profile" "node" {
  for_each = local.role_names

  name = each.value
  role = aws_iam_role.node[each.key].name
  tags = local.tags
}

# Sessions and tunnels without SSH.
resource "aws_iam_role_policy_attachment" "ssm" {
  for_each = local.kinds

  role       = aws_iam_role.node[each.key].name
  policy_arn = "arn:${local.partition}:iam::aws:policy/AmazonSSMManagedInstanceCore"
}

resource "aws_iam_role_policy" "node" {
  for_each = local.kinds

  name   = "node"
  role   = aws_iam_role.node[each.key].name
  policy = data.aws_iam_policy_document.node.json
}

resource "aws_iam_role_policy" "head" {
  for_each = {
    cluster = data.aws_iam_policy_document.cluster.json
    launch  = data.aws_iam_policy_document.launch.json
    roles   = data.aws_iam_policy_document.launch_roles.json
  }

  name   = each.key
  role   = aws_iam_role.node["head"].name
  policy = each.value
}
