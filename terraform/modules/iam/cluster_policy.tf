# What the head may do for its cluster besides launching.

data "aws_iam_policy_document" "cluster" {
  statement {
    sid       = "WriteConfig"
    actions   = ["s3:PutObject"]
    resources = ["${var.config_bucket_arn}/serve/*"]
  }

  # One deploy at a time: whoever holds the lock takes it away again.
  statement {
    sid       = "UnlockDeploy"
    actions   = ["s3:DeleteObject"]
    resources = ["${var.config_bucket_arn}/serve/deploying.json"]
  }

  statement {
    sid       = "MakeToken"
    actions   = ["secretsmanager:PutSecretValue"]
    resources = [var.ray_token_secret_arn]
  }

  statement {
    sid       = "Encrypt"
    actions   = ["kms:GenerateDataKey"]
    resources = [var.kms_key_arn]

    condition {
      test     = "StringEquals"
      variable = "kms:ViaService"
      values   = [for service in ["s3", "secretsmanager"] : "${service}.${var.region}.amazonaws.com"]
    }
  }

  statement {
    sid       = "ReadWhatIsDeployed"
    actions   = ["ssm:GetParameterHistory"]
    resources = ["arn:${local.partition}:ssm:${var.region}:${local.account}:parameter/headwater/${var.name}/serve-config"]
  }

  statement {
    sid       = "ReadEvents"
    actions   = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"]
    resources = [var.events_queue_arn]
  }

  statement {
    sid       = "DecryptEvents"
    actions   = ["kms:Decrypt"]
    resources = [var.kms_key_arn]

    condition {
      test     = "StringEquals"
      variable = "kms:ViaService"
      values   = ["sqs.${var.region}.amazonaws.com"]
    }
  }

  statement {
    sid       = "Register"
    actions   = ["servicediscovery:DeregisterInstance", "servicediscovery:RegisterInstance"]
    resources = [var.head_service_arn]
  }

  # Operations have no resource.
  statement {
    sid       = "FollowRegistration"
    actions   = ["servicediscovery:GetOperation"]
    resources = ["*"]
  }

  # Cloud Map writes the record in the head's name: this name, and an address.
  statement {
    sid       = "WriteName"
    actions   = ["route53:ChangeResourceRecordSets"]
    resources = ["arn:${local.partition}:route53:::hostedzone/${var.namespace_zone_id}"]

    condition {
      test     = "ForAllValues:StringEquals"
      variable = "route53:ChangeResourceRecordSetsNormalizedRecordNames"
      values   = ["head.${var.name}.internal"]
    }

    condition {
      test     = "ForAllValues:StringEquals"
      variable = "route53:ChangeResourceRecordSetsRecordTypes"
      values   = ["A"]
    }
  }

  statement {
    sid       = "LookUpZone"
    actions   = ["route53:GetHostedZone"]
    resources = ["arn:${local.partition}:route53:::hostedzone/${var.namespace_zone_id}"]
  }

  statement {
    sid       = "FindZone"
    actions   = ["route53:ListHostedZonesByName"]
    resources = ["*"]
  }
}
