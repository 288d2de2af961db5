"""What of a cluster's things nothing uses any more."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from deployments.aws.leftovers import (
    Kind,
    Leftover,
    left_instances,
    left_interfaces,
    left_volumes,
)

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
GRACE_S = 1800.0
OLD_S, YOUNG_S = 1800.0, 1799.0


def instance(
    node_id: str, kind: str | None, age_s: float = OLD_S, state: str = "running"
) -> dict[str, Any]:
    return {
        "InstanceId": node_id,
        "InstanceType": "p5.48xlarge",
        "State": {"Name": state},
        "LaunchTime": NOW - timedelta(seconds=age_s),
        "Tags": [{"Key": "ray-node-type", "Value": kind}] if kind else [],
    }


def left_ids(*instances: dict[str, Any]) -> list[str]:
    return [left.id for left in left_instances(instances, NOW, GRACE_S)]


def test_an_instance_that_ray_never_tagged_is_left_over_after_the_grace() -> None:
    head, worker = instance("i-head", "head"), instance("i-worker", "worker")
    old, young = instance("i-old", None), instance("i-young", None, YOUNG_S)
    assert left_instances([head, worker, old, young], NOW, GRACE_S) == [
        Leftover(
            Kind.INSTANCE,
            "i-old",
            "p5.48xlarge, on-demand, running, launched 0.5 h ago: Ray never knew it",
        )
    ]


@pytest.mark.parametrize(
    ("head", "left"),
    [
        (None, ["i-worker"]),
        ("running", []),
        ("pending", []),
        ("stopping", ["i-worker"]),
        ("stopped", ["i-worker"]),
    ],
)
def test_workers_are_left_over_when_no_head_runs_and_a_head_never_is(
    head: str | None, left: list[str]
) -> None:
    heads = [instance("i-head", "head", state=head)] if head else []
    workers = [instance("i-worker", "worker"), instance("i-young", "worker", YOUNG_S)]
    assert left_ids(*heads, *workers) == left


def test_a_spot_instance_is_told_as_such() -> None:
    spot = instance("i-spot", "worker", 7200.0) | {"InstanceLifecycle": "spot"}
    [left] = left_instances([spot], NOW, GRACE_S)
    assert left.words == "p5.48xlarge, spot, running, launched 2.0 h ago: its cluster has no head"


def test_volumes_are_left_over_when_they_are_old_and_not_attached() -> None:
    def volume(volume_id: str, age_s: float, state: str) -> dict[str, Any]:
        created = NOW - timedelta(seconds=age_s)
        return {"VolumeId": volume_id, "Size": 500, "State": state, "CreateTime": created}

    volumes = [
        volume("vol-old", OLD_S, "available"),
        volume("vol-young", YOUNG_S, "available"),
        volume("vol-used", OLD_S, "in-use"),
    ]
    assert left_volumes(volumes, NOW, GRACE_S) == [
        Leftover(Kind.VOLUME, "vol-old", "500 GiB, not attached")
    ]


def test_network_interfaces_are_left_over_when_they_were_unused_before_too() -> None:
    interfaces = [
        {"NetworkInterfaceId": "eni-old", "Status": "available"},
        {"NetworkInterfaceId": "eni-new", "Status": "available"},
        {"NetworkInterfaceId": "eni-used", "Status": "in-use"},
    ]
    found = left_interfaces(interfaces, {"eni-old", "eni-used"})
    assert [left.id for left in found] == ["eni-old"]
