# What launching needs of IAM and KMS: workers get one role, and volumes one key.

data "aws_iam_policy_document" "launch_roles" {
  statement {
    sid       = "GiveWorkersTheirRole"
    actions   = ["iam:PassRole"]
    resources = [local.role_arns["worker"]]

    condition {
      test     = "StringEquals"
      variable = "iam:PassedToService"
      values   = ["ec2.amazonaws.com"]
    }
  }

  # AWS's own roles for fleets and spot, which an account lacks before its first.
  statement {
    sid     = "MakeRolesOfFleets"
    actions = ["iam:CreateServiceLinkedRole"]
    resources = [
      for service in ["ec2fleet", "spot"] :
      "arn:${local.partition}:iam::${local.account}:role/aws-service-role/${service}.amazonaws.com/*"
    ]

    condition {
      test     = "StringEquals"
      variable = "iam:AWSServiceName"
      values   = ["ec2fleet.amazonaws.com", "spot.amazonaws.com"]
    }
  }

  statement {
    sid       = "EncryptVolumes"
    actions   = ["kms:Decrypt", "kms:DescribeKey", "kms:GenerateDataKeyWithoutPlaintext", "kms:ReEncrypt*"]
    resources = [var.kms_key_arn]

    condition {
      test     = "StringEquals"
      variable = "kms:ViaService"
      values   = ["ec2.${var.region}.amazonaws.com"]
    }
  }

  statement {
    sid       = "LetVolumesBeAttached"
    actions   = ["kms:CreateGrant"]
    resources = [var.kms_key_arn]

    condition {
      test     = "StringEquals"
      variable = "kms:ViaService"
      values   = ["ec2.${var.region}.amazonaws.com"]
    }

    condition {
      test     = "Bool"
      variable = "kms:GrantIsForAWSResource"
      values   = ["true"]
    }
  }
}
