# The policies as AWS gets them: the real provider renders them, and plans without asking AWS.

provider "aws" {
  region                      = "us-east-1"
  access_key                  = "testing"
  secret_key                  = "testing"
  skip_credentials_validation = true
  skip_metadata_api_check     = true
  skip_requesting_account_id  = true
}

override_data {
  target = data.aws_caller_identity.current
  values = { account_id = "123456789012" }
}

variables {
  name                 = "river"
  region               = "us-east-1"
  weights_bucket_arn   = "arn:aws:s3:::river-weights"
  config_bucket_arn    = "arn:aws:s3:::river-config"
  kms_key_arn          = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
  ray_token_secret_arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:river/ray-token-AbCdEf"
  events_queue_arn     = "arn:aws:sqs:us-east-1:123456789012:river-events"
  log_group_arn        = "arn:aws:logs:us-east-1:123456789012:log-group:/headwater/river"
  head_service_arn     = "arn:aws:servicediscovery:us-east-1:123456789012:service/srv-0123456789abcdef"
  namespace_zone_id    = "Z0123456789ABCDEFGHIJ"
  repository_arn       = "arn:aws:ecr:us-east-1:123456789012:repository/river/headwater"
}

run "a_worker_only_reads" {
  command = plan

  assert {
    condition = alltrue([
      for action in flatten([for statement in jsondecode(aws_iam_role_policy.node["worker"].policy).Statement : statement.Action]) :
      can(regex(":(BatchCheck|BatchGet|Decrypt$|Describe|Get|List|CreateLogStream$|PutLogEvents$|PutMetricData$)", action)) && !can(regex("[*]", action))
    ])
    error_message = "A worker reads, and writes nothing but logs and metrics."
  }

  assert {
    condition     = alltrue([for key, policy in aws_iam_role_policy.head : policy.role == "river-us-east-1-head"]) && toset(keys(aws_iam_role_policy.head)) == toset(["cluster", "launch", "roles"])
    error_message = "What is beyond reading belongs to the head alone."
  }
}

run "no_policy_allows_everything" {
  command = plan

  assert {
    condition = alltrue([
      for action in flatten([
        for policy in concat(values(aws_iam_role_policy.node), values(aws_iam_role_policy.head)) :
        [for statement in jsondecode(policy.policy).Statement : statement.Action]
      ]) : action == "kms:ReEncrypt*" || !can(regex("[*]", action))
    ])
    error_message = "Actions are named one by one."
  }

  assert {
    condition = alltrue(flatten([
      for policy in concat(values(aws_iam_role_policy.node), values(aws_iam_role_policy.head)) : [
        for statement in jsondecode(policy.policy).Statement : contains([
          "Describe", "FindZone", "FollowRegistration", "SignInToRegistry", "WriteMetrics",
        ], statement.Sid) if statement.Resource == "*"
      ]
    ]))
    error_message = "Only what AWS binds to no resource is allowed on all."
  }
}

run "what_the_head_launches_carries_the_clusters_tag" {
  command = plan

  assert {
    condition = alltrue([
      for statement in jsondecode(aws_iam_role_policy.head["launch"].policy).Statement :
      try(statement.Condition.StringEquals["aws:RequestTag/ray-cluster-name"], "") == "river"
      if contains(["Launch", "TagWhatIsLaunched"], statement.Sid)
    ])
    error_message = "Instances, volumes, interfaces and fleets are made with the tag or not at all."
  }

  assert {
    condition = alltrue([
      for statement in jsondecode(aws_iam_role_policy.head["launch"].policy).Statement :
      try(statement.Condition.StringEquals["aws:ResourceTag/ray-cluster-name"], "") == "river"
      if contains(["LaunchFromOwn", "TagOwn", "EndWorkers"], statement.Sid)
    ])
    error_message = "Templates, subnets and instances must be the cluster's own."
  }

  assert {
    condition = toset([
      for statement in jsondecode(aws_iam_role_policy.head["launch"].policy).Statement : statement.Sid
      if anytrue([for action in flatten([statement.Action]) : can(regex("^ec2:(Create|Run|Terminate)", action))])
    ]) == toset(["Launch", "LaunchFromOwn", "LaunchFromOthers", "TagWhatIsLaunched", "TagOwn", "EndWorkers"])
    error_message = "No other statement makes, tags or ends anything."
  }

  assert {
    condition = alltrue(flatten([
      for statement in jsondecode(aws_iam_role_policy.head["launch"].policy).Statement : [
        for resource in statement.Resource : !can(regex(":(instance|volume|fleet|network-interface|launch-template|subnet)/", resource))
      ] if statement.Sid == "LaunchFromOthers"
    ]))
    error_message = "Without a tag, only images and bought capacity are used."
  }

  assert {
    condition = alltrue([
      for statement in jsondecode(aws_iam_role_policy.head["launch"].policy).Statement :
      statement.Condition.StringNotEquals["aws:ResourceTag/ray-node-type"] == "head" if statement.Sid == "EndWorkers"
    ])
    error_message = "The head doesn't end itself."
  }
}

run "the_head_hands_on_the_workers_role_alone" {
  command = plan

  assert {
    condition = jsonencode([
      for statement in jsondecode(aws_iam_role_policy.head["roles"].policy).Statement :
      [statement.Resource, statement.Condition.StringEquals["iam:PassedToService"]] if statement.Action == "iam:PassRole"
    ]) == jsonencode([["arn:aws:iam::123456789012:role/river-us-east-1-worker", "ec2.amazonaws.com"]])
    error_message = "One role, to EC2."
  }

  assert {
    condition     = aws_iam_role.node["worker"].name == "river-us-east-1-worker" && aws_iam_role.node["head"].name == "river-us-east-1-head"
    error_message = "The role that may be handed on is the one that is made."
  }
}

run "the_head_writes_only_its_own" {
  command = plan

  assert {
    condition = jsonencode({
      for statement in jsondecode(aws_iam_role_policy.head["cluster"].policy).Statement : statement.Sid => statement.Resource
      if contains(["WriteConfig", "UnlockDeploy", "MakeToken", "Register", "WriteName"], statement.Sid)
      }) == jsonencode({
      WriteConfig  = "arn:aws:s3:::river-config/serve/*"
      UnlockDeploy = "arn:aws:s3:::river-config/serve/deploying.json"
      MakeToken    = "arn:aws:secretsmanager:us-east-1:123456789012:secret:river/ray-token-AbCdEf"
      Register     = "arn:aws:servicediscovery:us-east-1:123456789012:service/srv-0123456789abcdef"
      WriteName    = "arn:aws:route53:::hostedzone/Z0123456789ABCDEFGHIJ"
    })
    error_message = "Files that are deployed, the lock, the token and its name."
  }
}

run "roles_are_instances_and_managed_by_ssm" {
  command = plan

  assert {
    condition     = jsondecode(aws_iam_role.node["worker"].assume_role_policy).Statement[0].Principal.Service == "ec2.amazonaws.com"
    error_message = "Only instances take the role."
  }

  assert {
    condition     = alltrue([for attachment in aws_iam_role_policy_attachment.ssm : attachment.policy_arn == "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore"])
    error_message = "No other managed policy."
  }
}

run "a_zone_for_a_region" {
  command = plan

  variables {
    region = "us-east-1a"
  }

  expect_failures = [var.region]
}

run "a_name_with_an_underscore" {
  command = plan

  variables {
    name = "my_river"
  }

  expect_failures = [var.name]
}
