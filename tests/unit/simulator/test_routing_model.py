"""The model that only routes. All times are worked out by hand: 1,000 prefill tokens/s, blocks of
100 tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from app.routing.candidate import (
    LOCAL,
    Choice,
    HeldPrefix,
    ReplicaRates,
    RouteRequest,
    Source,
    SourceKind,
)
from simulator.errors import FleetSpecError
from simulator.outcome import RequestOutcome
from simulator.policies.base import RoutingPolicy, Seen
from simulator.policies.registry import RegisteredPolicy, create_policy
from simulator.routing_bound import bound
from simulator.routing_model import RoutingModel
from simulator.routing_spec import FleetChange, RoutingSpec, prefill_s
from simulator.workload import SimulatedRequest, Workload

SPEC = RoutingSpec(2, ReplicaRates(prefill_token_s=0.001), 1000, answer_token_s=0.1)


def request(
    name: str, arrival_s: float, prompt: str, num_answer_tokens: int = 1
) -> SimulatedRequest:
    """A letter is a block; one token follows the last."""
    keys = [letter.encode() for letter in prompt]
    return SimulatedRequest(name, arrival_s, 100 * len(keys) + 1, num_answer_tokens, keys)


def held(num_tokens: int) -> HeldPrefix:
    """There are no tiers behind the accelerator."""
    return HeldPrefix(num_tokens, num_tokens, num_tokens)


def to(*places: int | tuple[int, Source]) -> "Script":
    return Script([place if isinstance(place, tuple) else (place, LOCAL) for place in places])


class Script:
    """Sends to one place after the other, and keeps what it saw."""

    def __init__(self, places: Sequence[tuple[int, Source]]) -> None:
        self._places = iter(places)
        self.seen: list[list[Seen]] = []
        self.requests: list[RouteRequest] = []

    def __call__(self, request: RouteRequest, seen: Sequence[Seen]) -> Choice:
        place, source = next(self._places)
        self.seen.append(list(seen))
        self.requests.append(request)
        return Choice(seen[place].candidate, source)


def replay(
    policy: RoutingPolicy,
    *requests: SimulatedRequest,
    spec: RoutingSpec = SPEC,
    changes: Sequence[FleetChange] = (),
    is_told: bool = False,
) -> dict[str, RequestOutcome]:
    workload = Workload("test", 100, requests)
    outcome = RoutingModel(spec, RegisteredPolicy(policy, is_told), workload, changes).run()
    return {r.request_id: r for r in outcome.requests}


def ttfts(outcomes: dict[str, RequestOutcome]) -> dict[str, object]:
    return {name: pytest.approx(outcome.ttft_s) for name, outcome in outcomes.items()}


def test_prompts_are_computed_one_after_the_other_and_replicas_side_by_side() -> None:
    outcomes = replay(
        to(0, 0, 1), request("a", 0, "abc"), request("b", 0.1, "xy"), request("c", 0.1, "pq")
    )
    assert ttfts(outcomes) == {"a": 0.301, "b": 0.402, "c": 0.201}
    # The first token, and one of 100 ms.
    assert outcomes["a"].end_s == pytest.approx(0.401)


def test_what_was_computed_before_is_not_computed_again_but_for_the_last_token() -> None:
    outcomes = replay(
        to(0, 0, 1), request("a", 0, "abc"), request("b", 1, "abcde"), request("c", 2, "abc")
    )
    assert ttfts(outcomes) == {"a": 0.301, "b": 0.201, "c": 0.301}
    assert outcomes["b"].num_cached_tokens == 300


def test_longer_prompts_pay_for_attention_and_all_pay_the_base() -> None:
    rates = ReplicaRates(prefill_base_s=0.5, prefill_token_s=0.001, prefill_attended_s=0.00001)
    # 201 tokens at a mean position of 200.5 after 100 cached ones.
    assert prefill_s(rates, request("a", 0, "abc"), 100) == pytest.approx(
        0.5 + 0.201 + 201 * 200.5 * 0.00001
    )


def test_a_policy_sees_loads_and_what_is_held() -> None:
    script = to(0, 0, 0, 0)
    replay(
        script,
        request("a", 0, "abc", num_answer_tokens=10),
        request("b", 0.1, "xy"),
        request("c", 0.2, "abz"),
        request("d", 5, "abz"),
    )
    busy, idle = (seen.candidate for seen in script.seen[2])
    assert (busy.load.num_running, busy.load.num_waiting) == (1, 1)
    # 0.101 s of a, and all of b.
    assert busy.load.pending_prefill_tokens == pytest.approx(302, abs=1)
    # Prompts of four and three blocks, the last of each in part; the pool has ten.
    assert (busy.load.num_free_blocks, busy.load.num_blocks) == (3, 10)
    assert (busy.held, idle.held) == (held(200), held(0))
    assert (idle.load.num_running, idle.load.pending_prefill_tokens) == (0, 0)
    # Five blocks with a key were computed.
    assert (busy.load.num_prompt_tokens, busy.load.num_cached_prompt_tokens) == (502, 0)
    assert (busy.load.num_empty_blocks, idle.load.num_empty_blocks) == (5, 10)
    later = script.seen[3][0].candidate
    assert (later.load.num_running, later.load.num_free_blocks) == (0, 10)
    assert later.held == held(300)


def test_a_replica_at_rest_is_seen_to_end_its_answers() -> None:
    script = to(0, 1, 1, 1)
    replay(
        script,
        request("a", 0, "abc", num_answer_tokens=50),
        *(request(name, at_s, "x") for name, at_s in (("b", 2), ("c", 3), ("d", 9))),
    )
    views = [seen[0].candidate.load for seen in script.seen]
    assert [view.num_running for view in views] == [0, 1, 1, 0]
    assert [view.num_free_blocks for view in views] == [10, 6, 6, 10]


def test_tiers_are_loaded_where_that_is_faster_than_computing() -> None:
    spec = replace(
        SPEC,
        cache_tokens=200,
        host_tokens=200,
        disk_tokens=1000,
        rates=replace(SPEC.rates, host_tokens_per_s=10_000.0, disk_tokens_per_s=500.0),
    )
    outcomes = replay(
        to(0, 0, 0, 0),
        request("a", 0, "ab"),
        request("b", 1, "xy"),
        request("a2", 2, "ab"),
        request("c", 3, "vw"),
        spec=spec,
    )
    # 200 tokens at 10,000/s, and the last one.
    assert outcomes["a2"].ttft_s == pytest.approx(0.021)
    assert outcomes["a2"].num_loaded_tokens == 200
    # xy went to the disk, which is slower than computing.
    disk = replay(
        to(0, 0, 0, 0),
        request("a", 0, "ab"),
        request("b", 1, "xy"),
        request("c", 2, "vw"),
        request("a2", 3, "ab"),
        spec=spec,
    )
    assert disk["a2"].ttft_s == pytest.approx(0.201)


def test_pulls_from_one_peer_come_one_after_the_other() -> None:
    spec = replace(SPEC, num_replicas=3, rates=replace(SPEC.rates, peer_tokens_per_s=4000.0))
    pull = Source(SourceKind.PEER, "e0")
    outcomes = replay(
        to(0, (1, pull), (2, pull)),
        request("a", 0, "abcd"),
        request("b", 1, "abcd"),
        request("c", 1, "abcd"),
        spec=spec,
    )
    # 400 tokens take 0.1 s; the second pull waits for the first.
    assert ttfts(outcomes) == {"a": 0.401, "b": 0.101, "c": 0.201}
    assert outcomes["c"].num_loaded_tokens == 400


def test_an_engine_computes_what_a_peer_would_send_too_slowly_or_lacks() -> None:
    spec = replace(SPEC, rates=replace(SPEC.rates, peer_tokens_per_s=900.0))
    pull = Source(SourceKind.PEER, "e0")
    outcomes = replay(
        to(0, (1, pull), (1, pull)),
        request("a", 0, "abcd"),
        request("b", 1, "abcd"),
        request("c", 2, "xy"),
        spec=spec,
    )
    assert ttfts(outcomes) == {"a": 0.401, "b": 0.401, "c": 0.201}


def test_another_gateway_learns_of_a_send_a_while_later() -> None:
    spec = replace(SPEC, num_gateways=2, stale_s=1.0)
    script = to(0, 0, 0, 0)
    replay(
        script,
        request("a", 0, "abc", num_answer_tokens=100),
        request("b", 0.1, "abc"),
        request("c", 0.2, "abc"),
        request("d", 1.1, "abc"),
        spec=spec,
    )
    # The first gateway's a at once, the second one's b not yet.
    own = script.seen[2][0].candidate
    assert (own.held, own.load.num_running, own.num_in_flight) == (held(300), 1, 1)
    assert own.age_s == 1.0
    # b is over; a is a second old, and not this gateway's.
    other = script.seen[3][0].candidate
    assert (script.seen[1][0].candidate.held, other.held) == (held(0), held(300))
    assert (other.load.num_running, other.num_in_flight) == (1, 0)


def test_gateways_take_turns_with_rotations_of_their_own() -> None:
    script = to(0, 0, 0, 0)
    requests = [request(name, i, "a") for i, name in enumerate("abcd")]
    replay(script, *requests, spec=replace(SPEC, num_gateways=2))
    first, second = script.requests[0].rotation, script.requests[1].rotation
    assert [r.rotation for r in script.requests] == [first, second, first + 1, second + 1]
    assert abs(first - second) > 1


def test_a_gateway_takes_the_others_to_send_as_much_as_it_does() -> None:
    script = to(*[0] * 8)
    # All but the first of each gateway are cached, up to the last token.
    requests = [request(name, i / 2, "a") for i, name in enumerate("abcdefgh")]
    replay(script, *requests, spec=replace(SPEC, num_gateways=2, stale_s=0.5))
    last = script.requests[-1].gateways
    assert (last.rank, last.number) == (1, 2)
    assert last.requests_per_s == pytest.approx(1.0, rel=0.4)
    assert last.uncached_tokens == pytest.approx(1.0)


def test_what_was_sent_is_told_to_policies_that_go_by_it() -> None:
    script = to(0, 1)
    replay(script, request("a", 0, "abc"), request("b", 1, "abx"), is_told=True)
    first, second = script.seen[1]
    assert (first.told_tokens, first.told_size, first.recent_requests) == (200, 3, 1)
    assert (second.told_tokens, second.told_size, second.recent_requests) == (0, 0, 0)


def test_a_session_goes_on_after_the_answer_and_a_time_to_think() -> None:
    first = replace(request("a", 1, "ab", num_answer_tokens=5), session="s")
    second = replace(request("b", 0, "abc"), session="s", think_s=3.0)
    outcomes = replay(to(0, 0), first, second)
    assert outcomes["b"].arrival_s == pytest.approx(1 + 0.201 + 0.5 + 3.0)


def test_a_replica_that_joins_is_seen_empty() -> None:
    script = to(0, 2)
    outcomes = replay(
        script, request("a", 0, "abc"), request("b", 2, "abc"), changes=[FleetChange(1.0)]
    )
    assert [len(seen) for seen in script.seen] == [2, 3]
    assert outcomes["b"].engine_id == "e2"
    assert outcomes["b"].num_cached_tokens == 0


def test_requests_of_a_lost_replica_are_sent_again() -> None:
    script = to(0, 0, 0, 0)
    outcomes = replay(
        script,
        request("streams", 0, "ab", num_answer_tokens=20),
        request("waits", 0, "abcdef"),
        changes=[FleetChange(0.3, lost_engine_id="e0")],
    )
    assert {outcome.engine_id for outcome in outcomes.values()} == {"e1"}
    assert outcomes["streams"].ttft_s == pytest.approx(0.201)
    # From 0.3 s on it waits for what streamed, of whose prompt it has the beginning.
    assert outcomes["waits"].ttft_s == pytest.approx(0.3 + 0.201 + 0.401)
    assert script.seen[2][0].candidate.load.num_running == 0


def test_the_last_replica_can_not_be_lost() -> None:
    with pytest.raises(FleetSpecError, match="e0 is the last replica"):
        replay(
            to(0, 0),
            request("a", 0, "a"),
            spec=replace(SPEC, num_replicas=1),
            changes=[FleetChange(1.0, lost_engine_id="e0")],
        )


@pytest.mark.parametrize(
    "fields", [{"num_replicas": 0}, {"num_gateways": 0}, {"rates": ReplicaRates()}]
)
def test_a_fleet_that_can_not_serve_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(FleetSpecError):
        replace(SPEC, **fields)  # type: ignore[arg-type]


def test_no_policy_beats_the_bound() -> None:
    requests = [
        request(f"r{i}", 0.05 * i, "s" + chr(97 + i % 7) + chr(97 + i % 5)) for i in range(120)
    ]
    workload = Workload("test", 100, tuple(requests))
    limit = bound(SPEC, workload)
    assert limit.hit_rate == pytest.approx(workload_hits(requests))
    for name in ("round_robin", "least_ttft_with_pull", "headwater"):
        outcome = RoutingModel(SPEC, create_policy(name), workload).run()
        assert outcome.hit_rate <= limit.hit_rate
        assert outcome.ttft_s.mean >= limit.ttft_s.mean


def workload_hits(requests: list[SimulatedRequest]) -> float:
    known: set[bytes] = set()
    hits = 0
    for asked in requests:
        for key in asked.block_keys:
            if key not in known:
                break
            hits += 100
        known |= set(asked.block_keys)
    return hits / sum(asked.num_prompt_tokens for asked in requests)


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ({"num_replicas": 0}, "at least one replica"),
        ({"stale_s": float("nan")}, "stale_s is nan"),
        ({"rates": ReplicaRates()}, "prefill_token_s must be above 0"),
    ],
)
def test_a_fleet_that_cannot_be_is_refused(fault: dict[str, Any], complaint: str) -> None:
    with pytest.raises(FleetSpecError, match=complaint):
        replace(SPEC, **fault)
