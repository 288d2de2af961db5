"""What status tells: markets of nodes, full pools, replicas that wait."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.aws.aws_clients import AwsClients
from deployments.aws.cluster_nodes import ClusterNode, cluster_nodes
from deployments.aws.cluster_status import NUM_SHOWN_VERSIONS, ClusterStatus
from deployments.aws.config_history import ConfigVersion
from deployments.aws.launch_config import Market
from deployments.aws.serve_state import ServeState
from tests.unit.deployments.aws.fake_cluster import CARD

LAUNCHED = datetime(2026, 1, 1, tzinfo=UTC)
NODE = ClusterNode(
    instance_id="i-1",
    pool="l40s",
    market=Market.SPOT,
    instance_type="g6e.12xlarge",
    zone="us-east-1a",
    state="running",
    private_ip="10.40.0.7",
    launched_at=LAUNCHED,
)
WAITING = ServeState.model_validate(
    {
        "applications": {
            "alpha": {
                "status": "DEPLOYING",
                "deployments": {
                    "EngineReplica": {
                        "status": "UPDATING",
                        "message": "Traceback\nValueError: no node has 4 GPUs free",
                        "target_num_replicas": 3,
                        "replicas": [
                            {"replica_id": "a", "state": "RUNNING"},
                            {"replica_id": "b", "state": "STARTING"},
                        ],
                    }
                },
            }
        }
    }
)


def status(**changes: Any) -> ClusterStatus:
    return replace(ClusterStatus(CARD, [], [NODE], WAITING, None), **changes)


def instance(**more: Any) -> dict[str, Any]:
    return {
        "InstanceId": "i-1",
        "InstanceType": "g6e.12xlarge",
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "State": {"Name": "running"},
        "PrivateIpAddress": "10.40.0.7",
        "LaunchTime": LAUNCHED,
        "Tags": [{"Key": "ray-user-node-type", "Value": "l40s"}],
        **more,
    }


@pytest.mark.parametrize(
    ("more", "market"),
    [
        ({"InstanceLifecycle": "spot"}, Market.SPOT),
        ({"InstanceLifecycle": "capacity-block"}, Market.CAPACITY_BLOCK),
        ({"CapacityReservationId": "cr-1"}, Market.RESERVATION),
        ({}, Market.ON_DEMAND),
    ],
)
def test_the_market_of_a_node_is_what_ec2_says(more: dict[str, Any], market: Market) -> None:
    pages = [{"Reservations": [{"Instances": [instance(**more)]}]}]
    pager = SimpleNamespace(paginate=lambda **_: pages)
    none: Any = None
    ec2 = SimpleNamespace(get_paginator=lambda _: pager)
    nodes = cluster_nodes(AwsClients("us-east-1", none, none, none, ec2, none), "river")
    assert nodes == [replace(NODE, market=market)]


def test_replicas_that_wait_are_counted_with_the_reason_and_the_full_pools() -> None:
    two = [NODE, replace(NODE, instance_id="i-2", state="pending")]
    full = status(nodes=two)
    assert full.num_waiting_replicas == 2
    assert full.full_pools == ["l40s"]
    text = full.to_text()
    assert "alpha DEPLOYING (2 replicas missing): ValueError: no node has 4 GPUs free" in text
    assert "1 x l40s (spot) running" in text
    assert "1 x l40s (spot) pending" in text
    assert "2 replicas wait for a node or start; at their most nodes: l40s" in text
    assert status().full_pools == []


def test_without_serve_nothing_is_said_to_run() -> None:
    away = status(serve=None, serve_fault="the head is away")
    assert not away.is_running
    assert "Serve can't be asked: the head is away" in away.to_text()
    assert away.to_json()["applications"] is None


def test_only_a_cluster_that_serves_runs() -> None:
    running = ServeState.model_validate({"applications": {"alpha": {"status": "RUNNING"}}})
    assert status(serve=running).is_running
    assert not status().is_running
    assert not status(serve=ServeState()).is_running


def test_people_see_the_last_versions_and_scripts_all() -> None:
    versions = [ConfigVersion(n, f"serve/{n}.yaml", LAUNCHED, "ada", "deploy") for n in range(1, 9)]
    listed = status(versions=versions)
    lines = [line for line in listed.to_text().splitlines() if line.startswith("version")]
    assert len(lines) == NUM_SHOWN_VERSIONS
    assert lines[0].startswith("version 8 in force: ")
    data = json.loads(json.dumps(listed.to_json()))
    assert [version["version"] for version in data["config"]] == list(range(8, 0, -1))
    assert data["nodes"][0]["market"] == "spot"
