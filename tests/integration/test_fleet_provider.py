"""The node provider on a stand-in for EC2, in this process."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws
from ray.autoscaler.node_launch_exception import NodeLaunchException

from deployments.aws.fleet_provider import FleetProvider

pytestmark = pytest.mark.integration

REGION = "us-east-1"
TAGS = {"ray-node-type": "worker", "ray-user-node-type": "h100", "ray-launch-request": "r1"}


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.client("ec2", region_name=REGION)


def node_config(ec2: Any) -> dict[str, Any]:
    image = ec2.describe_images()["Images"][0]["ImageId"]
    template = ec2.create_launch_template(
        LaunchTemplateName="t", LaunchTemplateData={"ImageId": image}
    )["LaunchTemplate"]["LaunchTemplateId"]
    subnets = {s["AvailabilityZone"]: s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]}
    return {
        "offers": [
            {
                "market": market,
                "launch_template": {"id": template, "version": "1"},
                "instance_types": ["p5.48xlarge"],
                "subnets": {"us-east-1a": subnets["us-east-1a"]},
            }
            for market in ("spot", "on-demand")
        ]
    }


def test_nodes_are_launched_tagged_found_by_another_head_and_ended(ec2: Any) -> None:
    provider = FleetProvider({"region": REGION}, "c")
    nodes = list(provider.create_node(node_config(ec2), dict(TAGS), 2))
    assert len(nodes) == 2
    successor = FleetProvider({"region": REGION}, "c")
    assert sorted(successor.non_terminated_nodes({})) == sorted(nodes)
    assert TAGS.items() <= successor.node_tags(nodes[0]).items()
    assert successor.is_running(nodes[0])
    assert FleetProvider({"region": REGION}, "other").non_terminated_nodes({}) == []
    successor.terminate_nodes(["i-0123456789abcdef0", *nodes])
    assert successor.non_terminated_nodes({}) == []


def test_a_template_that_is_gone_is_told(ec2: Any) -> None:
    config = node_config(ec2)
    for offer in config["offers"]:
        offer["launch_template"]["id"] = "lt-0123456789abcdef0"
    provider = FleetProvider({"region": REGION}, "c")
    with pytest.raises(NodeLaunchException, match="apply Terraform again") as told:
        provider.create_node(config, dict(TAGS), 1)
    assert told.value.category == "BadLaunchTemplate"
