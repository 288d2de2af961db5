"""What Ray is told of nodes while EC2 lags behind, refuses or forgets."""

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest
from botocore.exceptions import ClientError
from ray.autoscaler.node_launch_exception import NodeLaunchException

from deployments.aws.errors import AwsRefused
from deployments.aws.fleet_provider import UNSEEN_S, FleetProvider

POOL = "h100"
TAGS = {"ray-node-type": "worker", "ray-user-node-type": POOL, "ray-launch-request": "r1"}
CONFIG = {
    "offers": [
        {
            "market": "spot",
            "launch_template": {"id": "lt-0a", "version": "1"},
            "instance_types": ["p5.48xlarge"],
            "subnets": {"us-east-1a": "subnet-a"},
        }
    ]
}


def refusal(code: str) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "no"}}, "Call")


@dataclass
class FakeEc2:
    """Lists only what it was told to show."""

    shown: dict[str, dict[str, Any]] = field(default_factory=dict)
    alive: set[str] = field(default_factory=set)
    protected: set[str] = field(default_factory=set)
    num_calls: int = 0
    capacity: int = 1000

    def __post_init__(self) -> None:
        self._numbers = count()

    def create_fleet(self, **request: Any) -> dict[str, Any]:
        asked = request["TargetCapacitySpecification"]["TotalTargetCapacity"]
        ids = [f"i-{next(self._numbers)}" for _ in range(min(asked, self.capacity))]
        self.alive.update(ids)
        return {"Instances": [{"InstanceIds": ids}]}

    def show(self, node_id: str) -> None:
        tags = TAGS | {"ray-cluster-name": "c"}
        self.shown[node_id] = {
            "InstanceId": node_id,
            "State": {"Name": "running"},
            "PrivateIpAddress": "10.40.0.9",
            "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        }

    def get_paginator(self, call: str) -> "FakeEc2":
        assert call == "describe_instances"
        return self

    def paginate(self, **_: Any) -> list[dict[str, Any]]:
        return [{"Reservations": [{"Instances": [one]}]} for one in self.shown.values()]

    def terminate_instances(self, InstanceIds: list[str]) -> None:  # noqa: N803  boto3's name
        self.num_calls += 1
        assert len(InstanceIds) <= 100
        if not self.alive.issuperset(InstanceIds):
            raise refusal("InvalidInstanceID.NotFound")
        if not self.protected.isdisjoint(InstanceIds):
            raise refusal("OperationNotPermitted")
        self.alive.difference_update(InstanceIds)


@dataclass
class Cluster:
    ec2: FakeEc2 = field(default_factory=FakeEc2)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        config = {"region": "us-east-1"}
        self.provider = FleetProvider(config, "c", self.ec2, lambda: self.now_s)

    def launch(self, num: int) -> list[str]:
        return list(self.provider.create_node(CONFIG, TAGS, num))


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_a_node_that_ec2_does_not_list_yet_is_there_for_a_while(cluster: Cluster) -> None:
    [node_id] = cluster.launch(1)
    assert cluster.provider.non_terminated_nodes({}) == [node_id]
    assert cluster.provider.node_tags(node_id)["ray-launch-request"] == "r1"
    assert cluster.provider.node_tags(node_id)["ray-cluster-name"] == "c"
    assert not cluster.provider.is_running(node_id)
    assert cluster.provider.internal_ip(node_id) is None
    cluster.now_s = UNSEEN_S
    assert cluster.provider.non_terminated_nodes({}) == []


def test_a_node_that_was_listed_is_gone_when_it_is_not_any_more(cluster: Cluster) -> None:
    [node_id] = cluster.launch(1)
    cluster.ec2.show(node_id)
    assert cluster.provider.non_terminated_nodes({}) == [node_id]
    assert cluster.provider.is_running(node_id)
    assert cluster.provider.internal_ip(node_id) == "10.40.0.9"
    cluster.ec2.shown.clear()
    assert cluster.provider.non_terminated_nodes({}) == []
    assert cluster.provider.is_terminated(node_id)


def test_a_node_that_was_ended_is_gone_though_ec2_still_lists_it(cluster: Cluster) -> None:
    [node_id] = cluster.launch(1)
    cluster.ec2.show(node_id)
    cluster.provider.terminate_node(node_id)
    assert cluster.ec2.alive == set()
    assert cluster.provider.non_terminated_nodes({}) == []


def test_those_that_came_are_there_when_too_few_came(cluster: Cluster) -> None:
    cluster.ec2.capacity = 1
    with pytest.raises(NodeLaunchException, match=r"pool h100: 1 of 3 nodes\. spot: fewer"):
        cluster.launch(3)
    assert len(cluster.provider.non_terminated_nodes({})) == 1


def test_nodes_are_filtered_by_tags(cluster: Cluster) -> None:
    cluster.launch(1)
    assert cluster.provider.non_terminated_nodes({"ray-user-node-type": "l40s"}) == []
    assert len(cluster.provider.non_terminated_nodes({"ray-user-node-type": POOL})) == 1


def test_unknown_nodes_among_many_do_not_keep_the_others_alive(cluster: Cluster) -> None:
    nodes = cluster.launch(250)
    cluster.provider.terminate_nodes([*nodes[:60], "i-away", *nodes[60:]])
    assert cluster.ec2.alive == set()
    assert cluster.ec2.num_calls < 20
    assert cluster.provider.non_terminated_nodes({}) == []


def test_a_node_that_can_not_be_ended_is_told_after_the_others_are_ended(cluster: Cluster) -> None:
    nodes = cluster.launch(101)
    cluster.ec2.protected = {nodes[0]}
    with pytest.raises(AwsRefused, match=r"cannot end 100 nodes of cluster c: .*NotPermitted"):
        cluster.provider.terminate_nodes(nodes)
    assert cluster.ec2.alive == set(nodes[:100])
    assert cluster.provider.non_terminated_nodes({}) == nodes[:100]


@pytest.mark.parametrize("config", [{}, {"offers": []}, CONFIG | {"ImageId": "ami-0"}])
def test_a_node_config_that_is_none_is_told(cluster: Cluster, config: dict[str, Any]) -> None:
    with pytest.raises(NodeLaunchException, match="pool h100: its node_config can't be") as told:
        cluster.provider.create_node(config, TAGS, 1)
    assert told.value.category == "InvalidNodeConfig"
