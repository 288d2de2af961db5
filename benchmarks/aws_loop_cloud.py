"""An EC2 on loopback for one cluster: subnets, a launch template per market, the head's instance,
and capacity that a scenario refuses by zone.

moto's EC2 in this process; one at a time, as its state is the process's. Knows no Ray.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import boto3
from moto.core.responses import ActionResult
from moto.ec2.models import EC2Backend
from moto.ec2.responses import EC2Response
from moto.server import ThreadedMotoServer

REGION = "us-east-1"
ZONES = ("us-east-1a", "us-east-1b")
CLUSTER = "loop"
POOL = "gpu"
INSTANCE_TYPE = "g6.xlarge"
_IMAGE = "ami-12c6146b"
MARKETS = ("spot", "on-demand")


@dataclass(slots=True)
class MockCloud:
    """One account with one cluster."""

    url: str
    refused_zones: set[str]
    """Where there is no capacity now."""
    ec2: Any = None
    subnets: dict[str, str] = field(default_factory=dict)
    """By zone."""
    templates: dict[str, str] = field(default_factory=dict)
    """By market."""
    head_id: str = ""
    fleets_asked: list[float] = field(default_factory=list)
    """When CreateFleet was called, on the monotonic clock."""
    refusals: list[str] = field(default_factory=list)
    """Zones that it was asked for and that had no capacity."""

    @property
    def environment(self) -> dict[str, str]:
        """What makes AWS clients of a child process use it."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def workers(self, *states: str) -> dict[str, dict[str, Any]]:
        """Instances of the cluster without the head, by id; in these states, or in any."""
        filters = [{"Name": "tag:ray-cluster-name", "Values": [CLUSTER]}]
        if states:
            filters.append({"Name": "instance-state-name", "Values": list(states)})
        found = self.ec2.describe_instances(Filters=filters)["Reservations"]
        instances = [each for reservation in found for each in reservation["Instances"]]
        return {
            each["InstanceId"]: each for each in instances if each["InstanceId"] != self.head_id
        }

    def terminate(self, instance_id: str) -> None:
        self.ec2.terminate_instances(InstanceIds=[instance_id])

    def node_config(self) -> dict[str, Any]:
        """As `deployments.aws.launch_config.LaunchConfig`."""
        offers = [
            {
                "market": market,
                "launch_template": {"id": self.templates[market], "version": "1"},
                "instance_types": [INSTANCE_TYPE],
                "subnets": dict(self.subnets),
            }
            for market in MARKETS
        ]
        return {"offers": offers}


@contextmanager
def mock_cloud() -> Iterator[MockCloud]:
    """Serves on a free port of loopback until the end of the block."""
    refused: set[str] = set()
    asked_s: list[float] = []
    refusals: list[str] = []
    answered: Any = EC2Response
    original = answered.create_fleet

    def create_fleet(response: Any) -> ActionResult:
        asked_s.append(time.monotonic())
        return _limited_fleet(response, original, refused, refusals)

    answered.create_fleet = create_fleet
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        cloud = MockCloud(f"http://{host}:{port}", refused, fleets_asked=asked_s, refusals=refusals)
        _found(cloud)
        yield cloud
    finally:
        server.stop()
        answered.create_fleet = original


def _found(cloud: MockCloud) -> None:
    """What Terraform would have made."""
    session = boto3.Session("testing", "testing", region_name=REGION)
    cloud.ec2 = session.client("ec2", endpoint_url=cloud.url)
    vpc = cloud.ec2.create_vpc(CidrBlock="10.40.0.0/16")["Vpc"]["VpcId"]
    for number, zone in enumerate(ZONES):
        made = cloud.ec2.create_subnet(
            VpcId=vpc, CidrBlock=f"10.40.{number}.0/24", AvailabilityZone=zone
        )
        cloud.subnets[zone] = made["Subnet"]["SubnetId"]
    for market in MARKETS:
        data: dict[str, Any] = {"ImageId": _IMAGE, "InstanceType": INSTANCE_TYPE}
        made = cloud.ec2.create_launch_template(
            LaunchTemplateName=f"{CLUSTER}-{POOL}-{market}", LaunchTemplateData=data
        )
        cloud.templates[market] = made["LaunchTemplate"]["LaunchTemplateId"]
    tags = {
        "ray-cluster-name": CLUSTER,
        "ray-node-type": "head",
        "ray-user-node-type": "head",
        "ray-node-status": "up-to-date",
    }
    head = cloud.ec2.run_instances(
        ImageId=_IMAGE,
        InstanceType="m6i.xlarge",
        MinCount=1,
        MaxCount=1,
        SubnetId=cloud.subnets[ZONES[0]],
        TagSpecifications=[
            {
                "ResourceType": "instance",
                "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
            }
        ],
    )
    cloud.head_id = head["Instances"][0]["InstanceId"]


def _limited_fleet(
    response: Any, original: Any, refused: set[str], refusals: list[str]
) -> ActionResult:
    """As EC2 answers: overrides without capacity are errors, the others are tried."""
    backend: EC2Backend = response.ec2_backend
    asked = response._get_param  # noqa: SLF001  moto has no other way
    errors, configs = [], asked("LaunchTemplateConfigs", [])
    for config in configs:
        overrides = config.get("Overrides", [])
        for override in list(overrides):
            zone = backend.get_subnet(override["SubnetId"]).availability_zone
            if zone in refused:
                overrides.remove(override)
                refusals.append(zone)
                errors.append(
                    {
                        "LaunchTemplateAndOverrides": {
                            "LaunchTemplateSpecification": config["LaunchTemplateSpecification"],
                            "Overrides": override,
                        },
                        "Lifecycle": "on-demand",
                        "ErrorCode": "InsufficientInstanceCapacity",
                        "ErrorMessage": f"there is no capacity in {zone}",
                    }
                )
    left = [config for config in configs if config.get("Overrides")]
    if not left:
        return ActionResult({"FleetId": "fleet-0", "Errors": errors, "Instances": []})
    response._get_param = lambda name, *rest, **options: (  # noqa: SLF001
        left if name == "LaunchTemplateConfigs" else asked(name, *rest, **options)
    )
    answer: dict[str, Any] = original(response).result
    return ActionResult({**answer, "Errors": errors})
