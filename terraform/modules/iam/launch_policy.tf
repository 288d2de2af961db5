# What the head may launch, tag and end: all of it bound to the cluster's tag.

locals {
  cluster_tag = "ray-cluster-name"
}

data "aws_iam_policy_document" "launch" {
  # What is made must carry the tag from the first moment.
  statement {
    sid     = "Launch"
    actions = ["ec2:CreateFleet", "ec2:RunInstances"]
    resources = [
      for kind in ["fleet", "instance", "network-interface", "volume"] : "${local.ec2_arn}:${kind}/*"
    ]

    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/${local.cluster_tag}"
      values   = [var.name]
    }
  }

  # What it is made from carries it, too.
  statement {
    sid     = "LaunchFromOwn"
    actions = ["ec2:CreateFleet", "ec2:RunInstances"]
    resources = [
      for kind in ["launch-template", "placement-group", "security-group", "subnet"] : "${local.ec2_arn}:${kind}/*"
    ]

    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/${local.cluster_tag}"
      values   = [var.name]
    }
  }

  # Images are AWS's or the account's, reservations are bought beside the cluster: neither has its tag.
  statement {
    sid     = "LaunchFromOthers"
    actions = ["ec2:CreateFleet", "ec2:RunInstances"]
    resources = [
      "arn:${local.partition}:ec2:${var.region}::image/*",
      "arn:${local.partition}:ec2:${var.region}::snapshot/*",
      "${local.ec2_arn}:capacity-reservation/*",
      "${local.ec2_arn}:spot-instances-request/*",
    ]
  }

  statement {
    sid     = "TagWhatIsLaunched"
    actions = ["ec2:CreateTags"]
    resources = [
      for kind in ["fleet", "instance", "network-interface", "volume"] : "${local.ec2_arn}:${kind}/*"
    ]

    condition {
      test     = "StringEquals"
      variable = "ec2:CreateAction"
      values   = ["CreateFleet", "RunInstances"]
    }

    condition {
      test     = "StringEquals"
      variable = "aws:RequestTag/${local.cluster_tag}"
      values   = [var.name]
    }
  }

  # Ray writes a node's state into its tags; none leaves the cluster that way.
  statement {
    sid       = "TagOwn"
    actions   = ["ec2:CreateTags"]
    resources = ["${local.ec2_arn}:instance/*"]

    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/${local.cluster_tag}"
      values   = [var.name]
    }

    condition {
      test     = "StringEqualsIfExists"
      variable = "aws:RequestTag/${local.cluster_tag}"
      values   = [var.name]
    }
  }

  # The head itself is its group's.
  statement {
    sid       = "EndWorkers"
    actions   = ["ec2:TerminateInstances"]
    resources = ["${local.ec2_arn}:instance/*"]

    condition {
      test     = "StringEquals"
      variable = "aws:ResourceTag/${local.cluster_tag}"
      values   = [var.name]
    }

    condition {
      test     = "StringNotEquals"
      variable = "aws:ResourceTag/ray-node-type"
      values   = ["head"]
    }
  }

  # EC2 describes all or nothing.
  statement {
    sid = "Describe"
    actions = [
      "ec2:DescribeCapacityReservations",
      "ec2:DescribeFleets",
      "ec2:DescribeImages",
      "ec2:DescribeInstanceStatus",
      "ec2:DescribeInstanceTypes",
      "ec2:DescribeInstances",
      "ec2:DescribeLaunchTemplateVersions",
      "ec2:DescribeLaunchTemplates",
      "ec2:DescribeSubnets",
      "ec2:DescribeTags",
    ]
    resources = ["*"]
  }
}
