"""The node provider on a stand-in for EC2, in this process: boto3 as it is, moto's EC2 behind it,
and capacity that a test takes away by type, zone and market.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import boto3
import pytest
from moto import mock_aws
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import InstanceBackend
from ray.autoscaler.node_launch_exception import NodeLaunchException
from ray.autoscaler.v2.instance_manager.node_provider import NodeProviderAdapter

from deployments.aws.fleet_provider import FleetProvider

pytestmark = pytest.mark.integration

REGION = "us-east-1"
TAGS = {"ray-node-type": "worker", "ray-user-node-type": "h100", "ray-launch-request": "r1"}
P5, P4 = "p5.48xlarge", "p4d.24xlarge"
NO_CAPACITY = "InsufficientInstanceCapacity"


@dataclass
class Capacity:
    """Refuses instances of a type, zone and market, each with EC2's code."""

    codes: dict[tuple[str, str, str], str] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    """Instances of a type that one request gets at most."""
    asked: list[tuple[str, str, str]] = field(default_factory=list)

    def refuse(self, instance_type: str, zone: str, market: str, code: str = NO_CAPACITY) -> None:
        self.codes[instance_type, zone, market] = code


@dataclass
class Cloud:
    ec2: Any
    capacity: Capacity
    template: str
    subnets: dict[str, str]

    def offer(self, market: str, zone: str = "us-east-1a", kind: str = P5) -> dict[str, Any]:
        return {
            "market": market,
            "launch_template": {"id": self.template, "version": "1"},
            "instance_types": [kind],
            "subnets": {zone: self.subnets[zone]},
        }

    def instances(self) -> list[dict[str, Any]]:
        found = self.ec2.describe_instances()["Reservations"]
        return [instance for reservation in found for instance in reservation["Instances"]]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    capacity = Capacity()
    launch = InstanceBackend.run_instances

    def run_instances(backend: Any, image_id: str, count: int, *rest: Any, **more: Any) -> Any:
        zone = backend.get_subnet(more["subnet_id"]).availability_zone
        market = "spot" if more.get("lifecycle") == "spot" else "on-demand"
        place = (more["instance_type"], zone, market)
        capacity.asked.append(place)
        if place in capacity.codes:
            raise EC2ClientError(capacity.codes[place], f"none of {place}")
        count = min(int(count), capacity.left.get(more["instance_type"], 1000))
        return launch(backend, image_id, count, *rest, **more)

    # moto never lacks capacity, and has no seam for it.
    monkeypatch.setattr(InstanceBackend, "run_instances", run_instances)
    with mock_aws():
        ec2 = boto3.client("ec2", region_name=REGION)
        image = ec2.describe_images()["Images"][0]["ImageId"]
        made = ec2.create_launch_template(
            LaunchTemplateName="t", LaunchTemplateData={"ImageId": image}
        )
        subnets = {s["AvailabilityZone"]: s["SubnetId"] for s in ec2.describe_subnets()["Subnets"]}
        yield Cloud(ec2, capacity, made["LaunchTemplate"]["LaunchTemplateId"], subnets)


@pytest.fixture
def provider(cloud: Cloud) -> FleetProvider:
    return FleetProvider({"region": REGION}, "c")


def create(provider: FleetProvider, count: int, *offers: dict[str, Any]) -> list[str]:
    return list(provider.create_node({"offers": list(offers)}, dict(TAGS), count))


def test_nodes_are_launched_tagged_found_by_another_head_and_ended(
    cloud: Cloud, provider: FleetProvider
) -> None:
    nodes = create(provider, 2, cloud.offer("spot"), cloud.offer("on-demand"))
    assert len(nodes) == 2
    successor = FleetProvider({"region": REGION}, "c")
    assert sorted(successor.non_terminated_nodes({})) == sorted(nodes)
    assert TAGS.items() <= successor.node_tags(nodes[0]).items()
    assert successor.is_running(nodes[0])
    assert FleetProvider({"region": REGION}, "other").non_terminated_nodes({}) == []
    successor.terminate_nodes(["i-0123456789abcdef0", *nodes])
    assert successor.non_terminated_nodes({}) == []
    assert {one["State"]["Name"] for one in cloud.instances()} == {"terminated"}


def test_what_one_zone_and_one_market_refuse_comes_from_others(
    cloud: Cloud, provider: FleetProvider
) -> None:
    cloud.capacity.refuse(P5, "us-east-1a", "spot")
    spot_a, spot_b = cloud.offer("spot"), cloud.offer("spot", "us-east-1b")
    [first] = create(provider, 1, spot_a, spot_b)
    cloud.capacity.refuse(P5, "us-east-1b", "spot")
    [second] = create(provider, 1, spot_a, spot_b, cloud.offer("on-demand"))
    instances = {one["InstanceId"]: one for one in cloud.instances()}
    assert instances[first]["Placement"]["AvailabilityZone"] == "us-east-1b"
    assert instances[first]["InstanceLifecycle"] == "spot"
    assert instances[second]["Placement"]["AvailabilityZone"] == "us-east-1a"
    assert "InstanceLifecycle" not in instances[second]
    # The second time the first zone was left out.
    assert cloud.capacity.asked.count((P5, "us-east-1a", "spot")) == 1


def test_refused_everywhere_is_told_and_not_asked_again_at_once(
    cloud: Cloud, provider: FleetProvider
) -> None:
    cloud.capacity.refuse(P5, "us-east-1a", "spot", "MaxSpotInstanceCountExceeded")
    cloud.capacity.refuse(P5, "us-east-1a", "on-demand")
    offers = cloud.offer("spot"), cloud.offer("on-demand")
    with pytest.raises(NodeLaunchException) as told:
        create(provider, 2, *offers)
    assert told.value.category == "NoCapacity"
    assert told.value.description == (
        "pool h100: 0 of 2 nodes. spot: MaxSpotInstanceCountExceeded; on-demand: "
        "InsufficientInstanceCapacity. A quota of the account is used up: raise it in Service "
        "Quotas. Asked again in 30 s."
    )
    with pytest.raises(NodeLaunchException, match="on-demand: InsufficientInstanceCapacity lately"):
        create(provider, 2, *offers)
    assert len(cloud.capacity.asked) == 2
    assert provider.non_terminated_nodes({}) == []


def test_another_type_gives_what_the_first_has_not(cloud: Cloud, provider: FleetProvider) -> None:
    cloud.capacity.left[P5] = 1
    nodes = create(provider, 3, cloud.offer("on-demand"), cloud.offer("on-demand", kind=P4))
    assert len(nodes) == 3
    kinds = [one["InstanceType"] for one in cloud.instances()]
    assert sorted(kinds) == [P4, P4, P5]


def test_those_that_came_are_found_though_ray_was_told_of_an_error(
    cloud: Cloud, provider: FleetProvider
) -> None:
    cloud.capacity.left[P5] = 1
    cloud.capacity.refuse(P4, "us-east-1a", "on-demand")
    offers = cloud.offer("on-demand"), cloud.offer("on-demand", kind=P4)
    with pytest.raises(NodeLaunchException, match="pool h100: 1 of 3 nodes"):
        create(provider, 3, *offers)
    [node] = provider.non_terminated_nodes({})
    assert node == cloud.instances()[0]["InstanceId"]


@dataclass(frozen=True)
class PoolConfig:
    """What Ray's adapter reads of the autoscaler's file."""

    node_config: dict[str, Any]

    def get_cached_autoscaling_config(self) -> "PoolConfig":
        return self

    def get_cloud_node_config(self, _: str) -> dict[str, Any]:
        return self.node_config

    def get_node_resources(self, _: str) -> dict[str, float]:
        return {"GPU": 8.0}

    def get_node_labels(self, _: str) -> dict[str, str]:
        return {}

    def get_config(self, _: str, default: Any = None) -> Any:
        return default


def test_ray_adopts_those_that_came_when_it_takes_the_error(
    cloud: Cloud, provider: FleetProvider
) -> None:
    cloud.capacity.left[P5] = 1
    adapter = NodeProviderAdapter(provider, PoolConfig({"offers": [cloud.offer("on-demand")]}))
    adapter.launch({"h100": 3}, "request-1")
    errors: list[Any] = []
    deadline_s = time.monotonic() + 30.0
    while not errors and time.monotonic() < deadline_s:
        errors = adapter.poll_errors()
        time.sleep(0.05)
    nodes = adapter.get_non_terminated()
    assert [(node.node_type, node.request_id) for node in nodes.values()] == [("h100", "request-1")]
    [error] = errors
    assert (error.request_id, error.node_type, error.count) == ("request-1", "h100", 3)
    assert "pool h100: 1 of 3 nodes" in str(error.__cause__)


def test_a_template_that_is_gone_is_told(cloud: Cloud, provider: FleetProvider) -> None:
    offer = cloud.offer("spot") | {
        "launch_template": {"id": "lt-0123456789abcdef0", "version": "1"}
    }
    with pytest.raises(NodeLaunchException, match="apply Terraform again") as told:
        create(provider, 1, offer)
    assert told.value.category == "BadLaunchTemplate"
    assert len(create(provider, 1, offer, cloud.offer("on-demand"))) == 1


def test_requests_from_many_threads_get_each_their_own_nodes(
    cloud: Cloud, provider: FleetProvider
) -> None:
    offers = cloud.offer("spot"), cloud.offer("on-demand")
    with ThreadPoolExecutor(8) as threads:
        launches = [threads.submit(create, provider, 2, *offers) for _ in range(8)]
        listings = [threads.submit(provider.non_terminated_nodes, {}) for _ in range(8)]
        nodes = [node for launch in launches for node in launch.result()]
        listed = [node for listing in listings for node in listing.result()]
    assert len(set(nodes)) == 16
    assert set(listed) <= set(nodes)
    assert sorted(provider.non_terminated_nodes({})) == sorted(nodes)
