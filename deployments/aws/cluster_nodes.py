"""The instances of a cluster: of which pool, from which market."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from deployments.aws.aws_clients import AwsClients, aws_errors
from deployments.aws.launch_config import Market

CLUSTER_TAG = "ray-cluster-name"
POOL_TAG = "ray-user-node-type"
_ALIVE = ("pending", "running", "shutting-down", "stopping")
_MARKETS = {"spot": Market.SPOT, "capacity-block": Market.CAPACITY_BLOCK}


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """One instance, the head among them."""

    instance_id: str
    pool: str
    """`head`, or a pool's name; empty for one that has no tag yet."""
    market: Market
    instance_type: str
    zone: str
    state: str
    private_ip: str
    launched_at: datetime


def cluster_nodes(clients: AwsClients, cluster: str) -> list[ClusterNode]:
    """Those that cost money, by pool, market and age. Raises `AwsRefused`."""
    filters = [
        {"Name": f"tag:{CLUSTER_TAG}", "Values": [cluster]},
        {"Name": "instance-state-name", "Values": list(_ALIVE)},
    ]
    with aws_errors(f"list the instances of {cluster}"):
        pages = clients.ec2.get_paginator("describe_instances").paginate(Filters=filters)
        nodes = [
            _node(instance)
            for page in pages
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]
    return sorted(nodes, key=lambda node: (node.pool, node.market, node.launched_at))


def count_nodes(nodes: Iterable[ClusterNode]) -> dict[tuple[str, Market, str], int]:
    """By pool, market and state."""
    counts: dict[tuple[str, Market, str], int] = {}
    for node in nodes:
        key = (node.pool, node.market, node.state)
        counts[key] = counts.get(key, 0) + 1
    return counts


def _node(instance: Mapping[str, Any]) -> ClusterNode:
    tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", ())}
    return ClusterNode(
        instance_id=str(instance["InstanceId"]),
        pool=tags.get(POOL_TAG, ""),
        market=_market(instance),
        instance_type=str(instance["InstanceType"]),
        zone=str(instance["Placement"]["AvailabilityZone"]),
        state=str(instance["State"]["Name"]),
        private_ip=str(instance.get("PrivateIpAddress", "")),
        launched_at=instance["LaunchTime"],
    )


def _market(instance: Mapping[str, Any]) -> Market:
    """As EC2 itself says."""
    market = _MARKETS.get(instance.get("InstanceLifecycle", ""))
    if market is not None:
        return market
    return Market.RESERVATION if instance.get("CapacityReservationId") else Market.ON_DEMAND
