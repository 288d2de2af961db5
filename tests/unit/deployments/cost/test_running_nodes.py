"""Nodes that run are counted as EC2 tells them, without the head."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from deployments.aws.aws_clients import AwsClients
from deployments.aws.launch_config import Market
from deployments.commands.cost import _running
from deployments.cost.bill import NodeCount
from deployments.cost.cluster_plan import cluster_plan
from tests.unit.deployments.cost.test_bill import CLUSTER


class FakeEc2:
    def __init__(self, instances: list[dict[str, Any]]) -> None:
        self._instances = instances

    def get_paginator(self, name: str) -> "FakeEc2":
        assert name == "describe_instances"
        return self

    def paginate(self, Filters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:  # noqa: N803
        assert {"Name": "tag:ray-cluster-name", "Values": ["river"]} in Filters
        yield {"Reservations": [{"Instances": self._instances}]}


def instance(number: int, pool: str, lifecycle: str | None = None) -> dict[str, Any]:
    found = {
        "InstanceId": f"i-{number}",
        "InstanceType": "p5.48xlarge",
        "Tags": [{"Key": "ray-user-node-type", "Value": pool}],
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "State": {"Name": "running"},
        "LaunchTime": datetime(2026, 8, 6, tzinfo=UTC),
    }
    return found if lifecycle is None else {**found, "InstanceLifecycle": lifecycle}


def test_running_workers_are_counted_by_pool_market_and_type() -> None:
    ec2 = FakeEc2(
        [
            instance(1, "head"),
            instance(2, "h100", "spot"),
            instance(3, "h100", "spot"),
            instance(4, "h100"),
        ]
    )
    clients = AwsClients("us-east-1", None, None, None, ec2, None)
    found = _running(cluster_plan(CLUSTER, "a test"), clients)
    assert sorted(found, key=lambda node: node.num_nodes) == [
        NodeCount("h100", Market.ON_DEMAND, "p5.48xlarge", 1, running=True),
        NodeCount("h100", Market.SPOT, "p5.48xlarge", 2, running=True),
    ]
