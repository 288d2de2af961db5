# How a VPC is laid out over its zones, and who may speak to whom.

mock_provider "aws" {
  mock_data "aws_region" {
    defaults = { id = "us-east-1", name = "us-east-1" }
  }

  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }

  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }

  mock_data "aws_iam_policy_document" {
    defaults = { json = "{}" }
  }

  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:us-east-1:123456789012:log-group:/headwater/river/flow" }
  }

  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/river-us-east-1-flow" }
  }
}

variables {
  name                 = "river"
  cidr                 = "10.40.0.0/16"
  zones                = ["us-east-1a", "us-east-1b", "us-east-1c"]
  flow_log_kms_key_arn = "arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000"
}

run "each_zone_gets_a_private_and_a_public_subnet" {
  assert {
    condition = jsonencode({ for zone, subnet in aws_subnet.private : zone => subnet.cidr_block }) == jsonencode({
      us-east-1a = "10.40.0.0/20"
      us-east-1b = "10.40.16.0/20"
      us-east-1c = "10.40.32.0/20"
    })
    error_message = "Private subnets are the first sixteenths, by the zone's position."
  }

  assert {
    condition = jsonencode({ for zone, subnet in aws_subnet.public : zone => subnet.cidr_block }) == jsonencode({
      us-east-1a = "10.40.240.0/24"
      us-east-1b = "10.40.241.0/24"
      us-east-1c = "10.40.242.0/24"
    })
    error_message = "Public subnets lie in the last sixteenth."
  }

  assert {
    condition     = !anytrue([for subnet in concat(values(aws_subnet.private), values(aws_subnet.public)) : subnet.map_public_ip_on_launch])
    error_message = "No subnet gives public addresses."
  }

  assert {
    condition     = alltrue([for zone, subnet in aws_subnet.private : subnet.availability_zone == zone])
    error_message = "Subnets lie in their own zone."
  }

  assert {
    condition     = output.private_subnets == { for zone, subnet in aws_subnet.private : zone => subnet.id } && output.public_subnets == { for zone, subnet in aws_subnet.public : zone => subnet.id }
    error_message = "Outputs give each zone its subnet."
  }
}

run "each_zone_has_its_own_way_out" {
  assert {
    condition     = length(aws_nat_gateway.this) == 3 && alltrue([for zone, route in aws_route.private : route.nat_gateway_id == aws_nat_gateway.this[zone].id])
    error_message = "A zone's nodes leave by their own zone's gateway."
  }
}

run "one_way_out_serves_all" {
  variables {
    nat_per_zone = false
  }

  assert {
    condition     = jsonencode(keys(aws_nat_gateway.this)) == jsonencode(["us-east-1a"]) && jsonencode(keys(aws_eip.nat)) == jsonencode(["us-east-1a"])
    error_message = "One gateway, in the first zone."
  }

  assert {
    condition     = length(aws_route.private) == 3 && alltrue([for route in aws_route.private : route.nat_gateway_id == aws_nat_gateway.this["us-east-1a"].id])
    error_message = "All zones leave by it."
  }
}

run "a_zone_at_the_end_moves_no_other" {
  variables {
    cidr  = "172.20.0.0/19"
    zones = ["us-east-1b", "us-east-1a", "us-east-1c", "us-east-1d", "us-east-1e", "us-east-1f"]
  }

  assert {
    condition     = aws_subnet.private["us-east-1b"].cidr_block == "172.20.0.0/23" && aws_subnet.private["us-east-1f"].cidr_block == "172.20.10.0/23"
    error_message = "Positions give addresses, not names."
  }

  assert {
    condition     = aws_subnet.public["us-east-1f"].cidr_block == "172.20.30.160/27"
    error_message = "Six zones fit into the smallest VPC."
  }
}

run "aws_answers_inside_the_vpc" {
  assert {
    condition     = aws_vpc_endpoint.s3.vpc_endpoint_type == "Gateway" && aws_vpc_endpoint.s3.service_name == "com.amazonaws.us-east-1.s3" && length(aws_vpc_endpoint.s3.route_table_ids) == 3
    error_message = "S3 is on every private route table."
  }

  assert {
    condition = toset([for endpoint in aws_vpc_endpoint.interface : endpoint.service_name]) == toset([
      for service in [
        "ec2", "ec2messages", "ecr.api", "ecr.dkr", "kms", "logs", "monitoring",
        "secretsmanager", "servicediscovery", "sqs", "ssm", "ssmmessages", "sts",
      ] : "com.amazonaws.us-east-1.${service}"
    ])
    error_message = "Nodes need these to start, register and report."
  }

  assert {
    condition = alltrue([
      for endpoint in aws_vpc_endpoint.interface :
      endpoint.private_dns_enabled && length(endpoint.subnet_ids) == 3 && endpoint.security_group_ids == toset([aws_security_group.endpoints.id])
    ])
    error_message = "Endpoints answer under AWS's names, in all zones, to whom their group lets."
  }

  assert {
    condition     = aws_vpc_security_group_ingress_rule.endpoints.cidr_ipv4 == "10.40.0.0/16" && aws_vpc_security_group_ingress_rule.endpoints.from_port == 443 && aws_vpc_security_group_ingress_rule.endpoints.to_port == 443
    error_message = "Only HTTPS, and only from the VPC."
  }
}

run "nodes_hear_nodes_and_speak_https_and_http" {
  assert {
    condition     = aws_vpc_security_group_ingress_rule.node.referenced_security_group_id == aws_security_group.node.id && aws_vpc_security_group_ingress_rule.node.cidr_ipv4 == null
    error_message = "Only nodes reach nodes."
  }

  assert {
    condition     = aws_vpc_security_group_egress_rule.node.referenced_security_group_id == aws_security_group.node.id && aws_vpc_security_group_egress_rule.node.ip_protocol == "-1"
    error_message = "Elastic Fabric Adapters want both directions."
  }

  assert {
    condition     = toset([for rule in aws_vpc_security_group_egress_rule.out : rule.from_port]) == toset([80, 443]) && alltrue([for rule in aws_vpc_security_group_egress_rule.out : rule.from_port == rule.to_port && rule.ip_protocol == "tcp"])
    error_message = "Nothing else goes out."
  }

  assert {
    condition     = length(aws_default_security_group.this.ingress) == 0 && length(aws_default_security_group.this.egress) == 0
    error_message = "The default group has no rules."
  }
}

run "the_head_has_a_name" {
  assert {
    condition     = output.head_address == "head.river.internal"
    error_message = "Nodes look the head up by name."
  }

  assert {
    condition     = aws_service_discovery_service.head.dns_config[0].dns_records[0].ttl == 10 && aws_service_discovery_service.head.dns_config[0].dns_records[0].type == "A"
    error_message = "Nodes find a new head within 10 s."
  }

  assert {
    condition     = aws_service_discovery_service.head.force_destroy
    error_message = "What a head registered would keep the namespace from going."
  }
}

run "flow_logs_are_kept_and_encrypted" {
  assert {
    condition     = aws_flow_log.this.traffic_type == "ALL" && aws_flow_log.this.log_destination == aws_cloudwatch_log_group.flow.arn
    error_message = "All traffic is logged."
  }

  assert {
    condition     = aws_cloudwatch_log_group.flow.kms_key_id == var.flow_log_kms_key_arn && aws_cloudwatch_log_group.flow.retention_in_days == 365
    error_message = "With the key given, for a year."
  }

  assert {
    condition     = data.aws_iam_policy_document.flow.statement[0].resources == toset(["arn:aws:logs:us-east-1:123456789012:log-group:/headwater/river/flow", "arn:aws:logs:us-east-1:123456789012:log-group:/headwater/river/flow:*"])
    error_message = "Flow logs write to their own group."
  }
}

run "all_carries_the_clusters_tag" {
  assert {
    condition = alltrue([
      for tags in concat(
        [aws_vpc.this.tags, aws_security_group.node.tags, aws_internet_gateway.this.tags, aws_flow_log.this.tags],
        [for subnet in values(aws_subnet.private) : subnet.tags], [for subnet in values(aws_subnet.public) : subnet.tags],
        [for gateway in values(aws_nat_gateway.this) : gateway.tags], [for endpoint in values(aws_vpc_endpoint.interface) : endpoint.tags],
      ) : tags["ray-cluster-name"] == "river"
    ])
    error_message = "The head may launch only into what carries the tag."
  }
}
