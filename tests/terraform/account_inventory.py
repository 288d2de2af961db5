"""All that stands in an account of the mock: it could cost money, or be in a new cluster's way.

Knows no module: it asks each service for its list.
"""

from collections.abc import Callable, Iterable

from tests.terraform.moto_shim import MockAws

ENDED = ("terminated", "shutting-down", "deleted", "deleting", "cancelled")


def inventory(aws: MockAws) -> frozenset[str]:
    """Names like ``vpc vpc-0a1b``. What has ended but is still listed is left out."""
    found = []
    for kind, things in _LISTS.items():
        found += [f"{kind} {name}" for name in things(aws)]
    return frozenset(found)


def _instances(aws: MockAws) -> Iterable[str]:
    for page in aws.client("ec2").describe_instances()["Reservations"]:
        for instance in page["Instances"]:
            if instance["State"]["Name"] not in ENDED:
                yield instance["InstanceId"]


def _ec2(call: str, answer: str, name: str, state: str | None = None) -> Callable[..., list[str]]:
    def things(aws: MockAws) -> list[str]:
        listed = getattr(aws.client("ec2"), call)()[answer]
        return [each[name] for each in listed if state is None or each.get(state) not in ENDED]

    return things


def _listed(service: str, call: str, answer: str, name: str) -> Callable[[MockAws], list[str]]:
    def things(aws: MockAws) -> list[str]:
        return [each[name] for each in getattr(aws.client(service), call)().get(answer, [])]

    return things


def _keys(aws: MockAws) -> Iterable[str]:
    """Keys of ours that nobody has ordered to be deleted: that alone takes a week."""
    kms = aws.client("kms")
    for key in kms.list_keys()["Keys"]:
        told = kms.describe_key(KeyId=key["KeyId"])["KeyMetadata"]
        if told["KeyManager"] == "CUSTOMER" and told["KeyState"] != "PendingDeletion":
            yield key["KeyId"]


def _policies(aws: MockAws) -> Iterable[str]:
    pages = aws.client("iam").get_paginator("list_policies").paginate(Scope="Local")
    for page in pages:
        yield from (policy["PolicyName"] for policy in page["Policies"])


def _web_acls(aws: MockAws) -> Iterable[str]:
    for acl in aws.client("wafv2").list_web_acls(Scope="REGIONAL")["WebACLs"]:
        yield acl["Name"]


def _queues(aws: MockAws) -> Iterable[str]:
    urls: list[str] = aws.client("sqs").list_queues().get("QueueUrls", [])
    return urls


def _parameters(aws: MockAws) -> Iterable[str]:
    return [each["Name"] for each in aws.client("ssm").describe_parameters()["Parameters"]]


_LISTS: dict[str, Callable[[MockAws], Iterable[str]]] = {
    "address": _ec2("describe_addresses", "Addresses", "AllocationId"),
    "alarm": _listed("cloudwatch", "describe_alarms", "MetricAlarms", "AlarmName"),
    "bucket": _listed("s3", "list_buckets", "Buckets", "Name"),
    "dashboard": _listed("cloudwatch", "list_dashboards", "DashboardEntries", "DashboardName"),
    "endpoint": _ec2("describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", "State"),
    "event rule": _listed("events", "list_rules", "Rules", "Name"),
    "flow log": _ec2("describe_flow_logs", "FlowLogs", "FlowLogId"),
    "instance": _instances,
    "instance group": _listed(
        "autoscaling", "describe_auto_scaling_groups", "AutoScalingGroups", "AutoScalingGroupName"
    ),
    "key": _keys,
    "launch template": _ec2("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId"),
    "load balancer": _listed(
        "elbv2", "describe_load_balancers", "LoadBalancers", "LoadBalancerArn"
    ),
    "log group": _listed("logs", "describe_log_groups", "logGroups", "logGroupName"),
    "memory db": _listed("memorydb", "describe_clusters", "Clusters", "Name"),
    "nat gateway": _ec2("describe_nat_gateways", "NatGateways", "NatGatewayId", "State"),
    "network interface": _ec2(
        "describe_network_interfaces", "NetworkInterfaces", "NetworkInterfaceId"
    ),
    "parameter": _parameters,
    "placement group": _ec2("describe_placement_groups", "PlacementGroups", "GroupName"),
    "policy": _policies,
    "profile": _listed("iam", "list_instance_profiles", "InstanceProfiles", "InstanceProfileName"),
    "prometheus": _listed("amp", "list_workspaces", "workspaces", "workspaceId"),
    "queue": _queues,
    "repository": _listed("ecr", "describe_repositories", "repositories", "repositoryName"),
    "reservation": _ec2(
        "describe_capacity_reservations", "CapacityReservations", "CapacityReservationId", "State"
    ),
    "role": _listed("iam", "list_roles", "Roles", "RoleName"),
    "secret": _listed("secretsmanager", "list_secrets", "SecretList", "Name"),
    "security group": _ec2("describe_security_groups", "SecurityGroups", "GroupId"),
    "service": _listed("servicediscovery", "list_services", "Services", "Name"),
    "namespace": _listed("servicediscovery", "list_namespaces", "Namespaces", "Name"),
    "subnet": _ec2("describe_subnets", "Subnets", "SubnetId"),
    "target group": _listed("elbv2", "describe_target_groups", "TargetGroups", "TargetGroupArn"),
    "topic": _listed("sns", "list_topics", "Topics", "TopicArn"),
    "volume": _ec2("describe_volumes", "Volumes", "VolumeId"),
    "vpc": _ec2("describe_vpcs", "Vpcs", "VpcId"),
    "web acl": _web_acls,
    "zone": _listed("route53", "list_hosted_zones", "HostedZones", "Name"),
}
