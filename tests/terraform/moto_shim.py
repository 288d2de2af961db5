"""An AWS in this process: moto's server on a free port, mended where Terraform's provider needs it.

What is mended, each because moto 5.2 lacks it or differs from EC2 and S3:

- placement groups and capacity reservations are unknown to it;
- it denies whatever a bucket policy denies under a condition, as it ignores conditions;
- tags of a launch template itself appear in the template's data;
- it tells no descriptions of rules that name a security group;
- what NAT gateways, a group's instances and namespaces hold outlives them.

Knows no module of ours.
"""

import functools
import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
import pytest
import requests
from moto import settings
from moto.core.responses import ActionResult
from moto.ec2.models import EC2Backend
from moto.ec2.models.instances import Instance
from moto.ec2.models.security_groups import SecurityGroupRule
from moto.ec2.responses import EC2Response
from moto.iam.access_control import IAMPolicy, PermissionResult
from moto.route53.models import route53_backends
from moto.s3.models import FakeBucket
from moto.server import ThreadedMotoServer
from moto.servicediscovery.models import ServiceDiscoveryBackend

REGION = "us-east-1"
_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True)
class MockAws:
    """One account. Its state is this process's: one at a time."""

    url: str

    def environment(self, region: str = REGION) -> dict[str, str]:
        """What makes AWS clients of a child process use it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": region,
            "AWS_DEFAULT_REGION": region,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str, region: str = REGION) -> Any:
        """A client of the account's owner."""
        return _session("testing", "testing", None, region).client(service, endpoint_url=self.url)

    def client_as(self, role_arn: str, service: str) -> Any:
        """A client with a role's credentials."""
        answer = self.client("sts").assume_role(RoleArn=role_arn, RoleSessionName="proof")
        given = answer["Credentials"]
        session = _session(
            given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"], REGION
        )
        return session.client(service, endpoint_url=self.url)

    @contextmanager
    def enforced_iam(self) -> Iterator[None]:
        """Every request inside needs a permission. Conditions are evaluated without a context."""
        before = settings.INITIAL_NO_AUTH_ACTION_COUNT
        settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
        try:
            yield
        finally:
            settings.INITIAL_NO_AUTH_ACTION_COUNT = before

    def reset(self) -> None:
        """Forgets everything."""
        requests.post(f"{self.url}/moto-api/reset", timeout=_TIMEOUT_S).raise_for_status()
        _placement_groups.clear()
        _reservations.clear()


@functools.cache
def _session(key: str, secret: str, token: str | None, region: str) -> boto3.Session:
    """Kept, as each reads the descriptions of its services anew."""
    return boto3.Session(key, secret, token, region_name=region)


@contextmanager
def mock_aws() -> Iterator[MockAws]:
    """Serves on a free port of 127.0.0.1 until the end of the block."""
    _mend()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MOTO_IAM_LOAD_MANAGED_POLICIES", "true")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        aws = MockAws(f"http://{host}:{port}")
        try:
            aws.reset()
            yield aws
        finally:
            server.stop()


_placement_groups: dict[str, dict[str, Any]] = {}
_reservations: dict[str, dict[str, Any]] = {}
_numbers = itertools.count(1)


def _tags(request: Any, kind: str) -> list[dict[str, str]]:
    tags = request._parse_tag_specification().get(kind, {})
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def _arn(request: Any, kind: str, name: str) -> str:
    return f"arn:aws:ec2:{request.region}:{request.current_account}:{kind}/{name}"


def _asked(request: Any, singular: str) -> list[str]:
    names: list[str] = request._get_param(f"{singular}s", []) or request._get_param(singular, [])
    return names


def _create_placement_group(request: Any) -> ActionResult:
    name = request._get_param("GroupName")
    group = {
        "GroupName": name,
        "GroupId": f"pg-{next(_numbers):017x}",
        "GroupArn": _arn(request, "placement-group", name),
        "Strategy": request._get_param("Strategy") or "cluster",
        "State": "available",
        "Tags": _tags(request, "placement-group"),
    }
    _placement_groups[name] = group
    return ActionResult({"PlacementGroup": group})


def _describe_placement_groups(request: Any) -> ActionResult:
    names = _asked(request, "GroupName")
    groups = [
        group
        for name, group in _placement_groups.items()
        if not names or name in names or group["GroupId"] in names
    ]
    return ActionResult({"PlacementGroups": groups})


def _delete_placement_group(request: Any) -> ActionResult:
    _placement_groups.pop(request._get_param("GroupName"), None)
    return ActionResult({})


def _create_capacity_reservation(request: Any) -> ActionResult:
    name = f"cr-{next(_numbers):017x}"
    count = int(request._get_param("InstanceCount"))
    asked = ("InstanceType", "InstancePlatform", "AvailabilityZone")
    reservation = {
        "CapacityReservationId": name,
        "CapacityReservationArn": _arn(request, "capacity-reservation", name),
        "OwnerId": request.current_account,
        **{key: request._get_param(key) for key in asked},
        "Tenancy": request._get_param("Tenancy") or "default",
        "TotalInstanceCount": count,
        "AvailableInstanceCount": count,
        "EbsOptimized": False,
        "EphemeralStorage": False,
        "State": "active",
        "EndDateType": request._get_param("EndDateType") or "unlimited",
        "InstanceMatchCriteria": request._get_param("InstanceMatchCriteria") or "open",
        "Tags": _tags(request, "capacity-reservation"),
    }
    _reservations[name] = reservation
    return ActionResult({"CapacityReservation": reservation})


def _describe_capacity_reservations(request: Any) -> ActionResult:
    names = _asked(request, "CapacityReservationId")
    found = [each for name, each in _reservations.items() if not names or name in names]
    return ActionResult({"CapacityReservations": found})


def _cancel_capacity_reservation(request: Any) -> ActionResult:
    reservation = _reservations.get(request._get_param("CapacityReservationId"))
    if reservation:
        reservation["State"] = "cancelled"
    return ActionResult({"Return": True})


def _bucket_permission(bucket: FakeBucket, action: str, resource: str) -> PermissionResult:
    """What the bucket's policy says, without what it denies under conditions."""
    if bucket.policy is None:
        return PermissionResult.NEUTRAL
    document = json.loads(bucket.policy.decode())
    told = document["Statement"]
    statements = [
        statement
        for statement in (told if isinstance(told, list) else [told])
        if not (statement.get("Effect") == "Deny" and statement.get("Condition"))
    ]
    if not statements:
        return PermissionResult.NEUTRAL
    policy = IAMPolicy(json.dumps({**document, "Statement": statements}))
    return policy.is_action_permitted(action, resource)


def _mended_create_launch_template(request: Any) -> ActionResult:
    answer = _create_launch_template(request)
    name = request._get_param("LaunchTemplateName")
    data = request.ec2_backend.get_launch_template_by_name(name).versions[0].data
    kept = [
        tags
        for tags in data.pop("TagSpecifications", [])
        if tags.get("ResourceType") != "launch-template"
    ]
    if kept:
        data["TagSpecifications"] = kept
    return answer


def _rule_description(rule: SecurityGroupRule) -> str | None:
    told: str | None = (rule.source_group or rule.ip_range or {}).get("Description")
    return told


def _mended_delete_nat_gateway(backend: EC2Backend, nat_gateway_id: str) -> Any:
    gateway = _delete_nat_gateway(backend, nat_gateway_id)
    backend.enis.pop(gateway._eni.id, None)
    return gateway


def _mended_terminate(instance: Instance) -> Any:
    interfaces = [interface.id for interface in instance.nics.values()]
    # A template's root volume takes the place of the one that each instance gets.
    volumes = [
        volume.id
        for volume in instance.ec2_backend.volumes.values()
        if volume.attachment and volume.attachment.instance.id == instance.id
    ]
    state = _terminate(instance)
    for interface in interfaces:
        instance.ec2_backend.enis.pop(interface, None)
    for volume in volumes:
        instance.ec2_backend.volumes.pop(volume, None)
    return state


def _mended_delete_namespace(backend: ServiceDiscoveryBackend, namespace_id: str) -> str:
    zone = (backend.get_namespace(namespace_id).dns_properties or {}).get("HostedZoneId")
    operation = _delete_namespace(backend, namespace_id)
    if zone:
        route53_backends[backend.account_id]["aws"].zones.pop(zone.rpartition("/")[2], None)
    return operation


_create_launch_template = EC2Response.create_launch_template
_delete_nat_gateway = EC2Backend.delete_nat_gateway
_terminate = Instance.terminate
_delete_namespace = ServiceDiscoveryBackend.delete_namespace


def _mend() -> None:
    """Changes moto's classes, once or again, to the same effect."""
    for name, action in (
        ("create_placement_group", _create_placement_group),
        ("describe_placement_groups", _describe_placement_groups),
        ("delete_placement_group", _delete_placement_group),
        ("create_capacity_reservation", _create_capacity_reservation),
        ("describe_capacity_reservations", _describe_capacity_reservations),
        ("cancel_capacity_reservation", _cancel_capacity_reservation),
        ("create_launch_template", _mended_create_launch_template),
    ):
        setattr(EC2Response, name, action)
    setattr(SecurityGroupRule, "description", property(_rule_description))  # noqa: B010
    setattr(EC2Backend, "delete_nat_gateway", _mended_delete_nat_gateway)  # noqa: B010
    setattr(Instance, "terminate", _mended_terminate)  # noqa: B010
    setattr(ServiceDiscoveryBackend, "delete_namespace", _mended_delete_namespace)  # noqa: B010
    setattr(FakeBucket, "get_permission", _bucket_permission)  # noqa: B010  mypy: a method
