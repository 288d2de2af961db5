import pytest

from autoscaler.config import ModelScalingConfig
from autoscaler.ladder import (
    NO_WARM_NODES,
    WarmNodes,
    assign_rungs,
    critical_ratio,
    serving_ratio,
    total_ratio,
)
from cache_tiers.rung import Rung
from tests.unit.autoscaler.fleets import make_replica


def test_the_ratio_is_that_of_the_newsvendor() -> None:
    assert critical_ratio(50.0, 1.0) == pytest.approx(50 / 51)
    assert critical_ratio(1.0, 100.0) == 0.5
    assert critical_ratio(50.0, 0.0) == 0.999


def test_spare_replicas_asleep_are_surer_to_suffice_the_cheaper_they_are() -> None:
    cheap, dear = (ModelScalingConfig(name="m", parked_cost=cost) for cost in (0.1, 0.8))
    assert total_ratio(cheap) > total_ratio(dear)
    assert serving_ratio(cheap) < serving_ratio(dear)


def test_where_nothing_sleeps_both_are_one() -> None:
    for config in (
        ModelScalingConfig(name="m", max_parked=0),
        ModelScalingConfig(name="m", parked_cost=1.0),
    ):
        assert total_ratio(config) == serving_ratio(config) == pytest.approx(50 / 51)


def sleepers(rungs: dict[str, Rung]) -> set[str]:
    return {engine_id for engine_id, rung in rungs.items() if rung is Rung.PARKED}


def test_the_emptiest_sleep() -> None:
    replicas = tuple(make_replica(f"e{n}", num_running=n) for n in (3, 0, 5, 1))
    assert sleepers(assign_rungs(replicas, 2, {})) == {"e0", "e1"}


def test_a_replica_that_the_router_does_not_count_yet_sleeps_first() -> None:
    replicas = (make_replica("new", is_seeded=False), make_replica("old"))
    assert sleepers(assign_rungs(replicas, 1, {})) == {"new"}


def test_who_sleeps_goes_on_sleeping() -> None:
    replicas = (make_replica("a"), make_replica("b", Rung.PARKED), make_replica("c"))
    assert sleepers(assign_rungs(replicas, 2, {"b": Rung.PARKED})) == {"b"}


def test_who_is_on_its_way_to_sleep_is_not_taken_back_for_another() -> None:
    replicas = (make_replica("a"), make_replica("b", num_running=9, is_moving=True))
    assert sleepers(assign_rungs(replicas, 1, {"b": Rung.PARKED})) == {"b"}


def test_who_is_on_its_way_up_is_not_sent_back_for_another() -> None:
    replicas = (
        make_replica("a", Rung.PARKED, wake_s=9.0, is_moving=True),
        make_replica("b", Rung.PARKED, wake_s=1.0),
    )
    assert sleepers(assign_rungs(replicas, 1, {"a": Rung.SERVING, "b": Rung.PARKED})) == {"b"}


def test_a_sleeper_wakes_for_one_that_serve_stops() -> None:
    replicas = (
        make_replica("a"),
        make_replica("b", is_draining=True),
        make_replica("c", Rung.PARKED, wake_s=9.0),
        make_replica("d", Rung.PARKED, wake_s=1.0),
    )
    rungs = assign_rungs(replicas, 2, {"c": Rung.PARKED, "d": Rung.PARKED})
    assert rungs == {"a": Rung.SERVING, "c": Rung.PARKED, "d": Rung.SERVING}


def test_the_last_one_serves_whatever_is_there() -> None:
    assert sleepers(assign_rungs((make_replica("a"),), 3, {})) == set()


@pytest.mark.parametrize(
    ("num_more", "rung"),
    [
        (-3, Rung.STAGED),
        (0, Rung.STAGED),
        (1, Rung.STAGED),
        (2, Rung.STAGED),
        (3, Rung.ON_DISK),
        (5, Rung.ON_DISK),
        (6, Rung.COLD),
    ],
)
def test_the_last_replica_that_is_needed_begins_on_the_coldest_rung(
    num_more: int, rung: Rung
) -> None:
    assert WarmNodes(num_staged=2, num_on_disk=3).start_rung(num_more) is rung


def test_where_nothing_is_held_the_next_replica_begins_from_nothing() -> None:
    assert NO_WARM_NODES.start_rung(0) is Rung.COLD
    assert WarmNodes(num_on_disk=1).start_rung(1) is Rung.ON_DISK
