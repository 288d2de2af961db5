"""What the autoscaler's section refuses, and how it says so."""

from typing import Any

import pytest
from pydantic import ValidationError

from autoscaler.config import AutoscalerConfig

NIGHT = {"min_replicas": 2, "begin": "22:00", "end": "06:00"}


def read(model: dict[str, Any] | None = None, **section: Any) -> AutoscalerConfig:
    return AutoscalerConfig.model_validate({"models": [{"name": "m", **(model or {})}], **section})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
@pytest.mark.parametrize("name", ["ttft_target_s", "late_cost", "start_s", "wake_s"])
def test_what_is_no_time_and_no_cost(name: str, value: float) -> None:
    with pytest.raises(ValidationError, match=name):
        read({name: value})


@pytest.mark.parametrize("capacity", [{"requests_per_s": float("inf")}, {"requests_per_s": 0}])
def test_a_capacity_that_no_replica_has(capacity: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match="requests_per_s"):
        read({"capacity": capacity})


def test_times_of_a_schedule_with_an_offset_of_their_own() -> None:
    with pytest.raises(ValidationError, match="name the zone as the autoscaler's timezone"):
        read({"schedules": [{**NIGHT, "begin": "22:00+02:00"}]})
    assert read({"schedules": [NIGHT]}).models[0].schedules[0].min_replicas == 2


@pytest.mark.parametrize("zone", ["", "Mars/Base", "../../etc/passwd", "Europe"])
def test_a_place_that_has_no_clock(zone: str) -> None:
    with pytest.raises(ValidationError, match="take a name of the IANA database"):
        read(timezone=zone)


def test_a_model_twice() -> None:
    with pytest.raises(ValidationError, match="listed twice"):
        AutoscalerConfig.model_validate({"models": [{"name": "m"}, {"name": "m"}]})


def test_replicas_larger_than_a_node() -> None:
    with pytest.raises(ValidationError, match="m takes 8 accelerators, and a node has 4"):
        read({"devices_per_replica": 8}, devices_per_node=4)
    assert read({"devices_per_replica": 4}, devices_per_node=4).devices_per_node == 4


def test_a_replica_with_more_accelerators_than_a_plan_can_count() -> None:
    with pytest.raises(ValidationError, match="devices_per_replica"):
        read({"devices_per_replica": 10**30})


def test_bounds_in_the_wrong_order() -> None:
    with pytest.raises(ValidationError, match="raise the one or lower the other"):
        read({"min_replicas": 3, "max_replicas": 2})


@pytest.mark.parametrize("name", ["start_s", "on_disk_start_s", "staged_start_s"])
def test_a_start_that_takes_no_time(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        read({name: 0})
    assert getattr(read({name: 3}).models[0], name) == 3


def test_nodes_that_take_no_time() -> None:
    with pytest.raises(ValidationError, match="node_start_s"):
        read(node_start_s=0)
