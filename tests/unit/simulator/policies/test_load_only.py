"""Policies without prefixes."""

from collections import Counter

from msgspec.structs import replace

from app.routing.candidate import RouteRequest
from simulator.policies.base import Seen, cheapest, draw_index
from simulator.policies.load_only import least_requests, power_of_two, round_robin
from tests.unit.simulator.policies.seen_replicas import seen


def test_round_robin_takes_turns() -> None:
    fleet = [seen("a", running=9), seen("b"), seen("c")]
    chosen = [
        round_robin(RouteRequest(10, rotation=turn), fleet).candidate.engine_id for turn in range(5)
    ]
    assert chosen == ["a", "b", "c", "a", "b"]


def test_the_fewest_requests_win_wherever_they_stand() -> None:
    fleet = [seen("a", running=2, waiting=1), seen("b", running=1, waiting=1), seen("c", running=4)]
    assert least_requests(RouteRequest(10), fleet).candidate.engine_id == "b"


def test_requests_that_the_view_does_not_show_yet_count() -> None:
    a = seen("a", running=1)
    busy = Seen(replace(a.candidate, num_unseen=3, num_in_flight=3))
    assert busy.num_requests == 4
    assert Seen(replace(a.candidate, num_in_flight=7)).num_requests == 7
    fleet = [busy, seen("b", running=3)]
    assert least_requests(RouteRequest(10), fleet).candidate.engine_id == "b"


def test_of_two_random_replicas_the_idler_one_is_taken() -> None:
    fleet = [seen("a", running=5), seen("b", running=3), seen("c", running=4)]
    chosen = Counter(
        power_of_two(RouteRequest(10, rotation=turn), fleet).candidate.engine_id
        for turn in range(3000)
    )
    # The busiest never wins; b wins both pairs that it is in, c one of three.
    assert chosen["a"] == 0
    assert 0.60 < chosen["b"] / 3000 < 0.73


def test_one_replica_is_always_the_better_of_two() -> None:
    assert power_of_two(RouteRequest(10, rotation=3), [seen("a")]).candidate.engine_id == "a"


def test_equal_costs_are_drawn_from_evenly_and_others_never() -> None:
    chosen = Counter(cheapest([2.0, 1.0, 3.0, 1.0], turn) for turn in range(2000))
    assert set(chosen) == {1, 3}
    assert 0.45 < chosen[1] / 2000 < 0.55
    assert draw_index(17, 1) == 0
