"""Policies that go by what was sent before. All figures are worked out by hand."""

import pytest

from app.routing.candidate import RouteRequest
from simulator.policies.aibrix import aibrix
from simulator.policies.base import RoutingPolicy
from simulator.policies.preble import allocation_cost_s, preble, prefill_s
from simulator.policies.ray_prefix import ray_prefix
from simulator.policies.sglang import sglang, sglang_gateway
from tests.unit.simulator.policies.seen_replicas import seen

REQUEST = RouteRequest(1000)


def test_ray_takes_the_shortest_queue_of_those_with_the_longest_match() -> None:
    fleet = [
        seen("a", running=5, told_tokens=100),
        seen("b", running=4, told_tokens=100),
        seen("idle"),
    ]
    assert ray_prefix(REQUEST, fleet).candidate.engine_id == "b"


def test_ray_takes_the_smallest_tree_below_a_tenth() -> None:
    fleet = [
        seen("a", running=5, told_tokens=100, told_size=50),
        seen("b", running=4, told_size=30),
        seen("c", running=3, told_size=30),
        seen("idle", told_size=31),
    ]
    assert ray_prefix(REQUEST, fleet).candidate.engine_id == "a"
    # One block of eleven is less than a tenth.
    assert ray_prefix(RouteRequest(1001), fleet).candidate.engine_id == "c"


def test_ray_never_falls_back_by_default_and_does_above_a_threshold() -> None:
    fleet = [seen("a", running=1000, told_tokens=500), seen("b")]
    assert ray_prefix(REQUEST, fleet).candidate.engine_id == "a"
    assert ray_prefix(REQUEST, fleet, imbalanced_threshold=999).candidate.engine_id == "b"


@pytest.mark.parametrize("policy", [sglang, sglang_gateway])
def test_sglang_keeps_affinity_up_to_33_more_requests(policy: RoutingPolicy) -> None:
    def chosen(running: int, idle: int = 0) -> str:
        fleet = [seen("a", running=running, told_tokens=600), seen("b", running=idle)]
        return policy(REQUEST, fleet).candidate.engine_id

    assert chosen(32) == "a"
    assert chosen(33) == "b"
    # 440 is not more than 1.1 times 400.
    assert chosen(440, idle=400) == "a"
    assert chosen(441, idle=400) == "b"


def test_sglang_needs_more_than_half_of_the_prompt() -> None:
    fleet = [
        seen("a", running=2, told_tokens=500, told_size=9),
        seen("b", running=3, told_size=8),
        seen("c", running=1, told_size=10),
    ]
    assert sglang(REQUEST, fleet).candidate.engine_id == "b"
    assert sglang_gateway(REQUEST, fleet).candidate.engine_id == "c"


def test_aibrix_tries_matches_in_order_and_skips_the_busy() -> None:
    # Mean 4, deviation sqrt(8) = 2.83: up to 6.83 requests.
    fleet = [
        seen("a", running=8, told_tokens=900),
        seen("b", running=6, told_tokens=700),
        seen("c", running=2, told_tokens=700),
        seen("d", running=0),
        seen("e", running=4, told_tokens=600),
    ]
    # 70 % both: the one with fewer requests.
    assert aibrix(REQUEST, fleet).candidate.engine_id == "c"
    # Two deviations are 9.66 requests.
    assert aibrix(REQUEST, fleet, deviations=2).candidate.engine_id == "a"


def test_aibrix_drops_affinity_when_counts_differ_by_more_than_8() -> None:
    fleet = [seen("a", running=8, told_tokens=900), seen("b", running=8), seen("c")]
    assert aibrix(REQUEST, fleet).candidate.engine_id == "a"
    fleet[0] = seen("a", running=9, told_tokens=900)
    assert aibrix(REQUEST, fleet).candidate.engine_id == "c"


def test_aibrix_without_a_match_takes_the_least_busy() -> None:
    # One block of 101 is 0 %.
    fleet = [seen("a", running=2, told_tokens=100), seen("b", running=1)]
    assert aibrix(RouteRequest(10_100), fleet).candidate.engine_id == "b"


def test_preble_exploits_above_a_half_and_explores_below() -> None:
    fleet = [
        seen("a", told_tokens=600, recent_requests=5, recent_cost_s=9.0),
        seen("b", told_tokens=600, recent_requests=4, recent_cost_s=9.0),
        seen("c", told_tokens=400, recent_requests=1, recent_cost_s=3.0),
        seen("d", recent_requests=9, recent_cost_s=2.0),
    ]
    assert preble(REQUEST, fleet).candidate.engine_id == "b"
    assert preble(RouteRequest(1200), fleet).candidate.engine_id == "d"


def test_preble_counts_the_prefill_of_what_was_missed() -> None:
    # (55 + 0.8) / 0.9 ms up to 192 new tokens of a short prompt.
    assert prefill_s(100, 1000) == pytest.approx(0.062)
    # -295 + 3.125 * 200 - 0.0064 * 40,000 = 74; attention (0.000465 * 2,000 + 0.398) / 2 = 0.664.
    assert prefill_s(200, 2000) == pytest.approx((74 + 0.664) / 900)
    # 0.27106428 * 10,000 + 10.52444263, 0.000465 * 10,000 + 0.398, -18.425 + 96.5 + 540.
    assert prefill_s(10_000, 10_000) == pytest.approx((2721.16724263 + 5.048 + 618.075) / 900)
    # Half of the prompt is missed, and 45 tokens take 150 ms each.
    assert allocation_cost_s(100, 200) == pytest.approx(0.5 * 0.062 + 6.75)
