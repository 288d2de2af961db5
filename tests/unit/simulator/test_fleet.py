"""A simulated fleet answers every request once, the same every time, and bears that replicas come
and go.
"""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.config import EngineConfig
from engine.messages import ServiceClass
from engine.performance_profile import StepCost
from engine.step_time import StepWork
from simulator.errors import FleetSpecError, SimulationError
from simulator.fleet import FleetChange, FleetSpec, block_units, simulate
from simulator.outcome import Outcome
from simulator.performance import Bandwidths, LinearModel
from simulator.replica_spec import ReplicaSpec
from simulator.synthetic import chat, poisson
from simulator.workload import SimulatedRequest, Workload

MODEL = LinearModel(
    StepCost(0.015, 1 / 6000, 0.0002, 1e-8),
    Bandwidths(host_tokens_per_s=100_000, disk_tokens_per_s=20_000, peer_tokens_per_s=60_000),
)
REPLICA = ReplicaSpec(MODEL, num_kv_tokens=200_000)
TIGHT = EngineConfig(
    runner="paced", max_num_seqs=64, max_step_stretch=None, kv_admission="optimistic"
)
CHAT = chat(num_sessions=24, sessions_per_s=2.0, num_turns=4, num_system_prompts=6, seed=5)
BRIEF_CHAT = chat(
    num_sessions=10,
    sessions_per_s=1.0,
    num_turns=3,
    num_system_prompts=4,
    num_answer_tokens=150,
    seed=5,
)


def num_requests_by_engine(outcome: Outcome, since_s: float = 0.0) -> Counter[str]:
    return Counter(r.engine_id for r in outcome.requests if r.arrival_s >= since_s)


@settings(max_examples=6, deadline=None)
@given(
    policy=st.sampled_from(["headwater", "least_ttft_with_pull", "sglang", "round_robin"]),
    num_gateways=st.integers(1, 3),
    stale_s=st.sampled_from([0.0, 0.5]),
    num_kv_tokens=st.sampled_from([9_000, 60_000]),
    host_tokens=st.sampled_from([0, 50_000]),
    changes=st.lists(
        st.one_of(
            st.builds(FleetChange, st.floats(0, 40), st.none()),
            st.builds(FleetChange, st.floats(41, 60), st.just("e1"), is_lost=st.booleans()),
        ),
        max_size=3,
        unique_by=lambda change: change.engine_id or change.at_s,
    ),
)
def test_every_request_ends_once_whatever_happens(
    policy: str,
    num_gateways: int,
    stale_s: float,
    num_kv_tokens: int,
    host_tokens: int,
    changes: list[FleetChange],
) -> None:
    spec = FleetSpec(
        3,
        replace(REPLICA, config=TIGHT, num_kv_tokens=num_kv_tokens, host_tokens=host_tokens),
        policy=policy,
        num_gateways=num_gateways,
        stale_s=stale_s,
        changes=changes,
    )
    outcome = simulate(BRIEF_CHAT, spec)
    ids = [request.request_id for request in outcome.requests]
    assert len(ids) == len(set(ids)) == len(BRIEF_CHAT) - outcome.num_refused
    for request in outcome.requests:
        assert request.arrival_s < request.first_token_s <= request.end_s
        assert 0 <= request.num_loaded_tokens <= request.num_prompt_tokens
        assert 0 <= request.num_cached_tokens < request.num_prompt_tokens
    assert simulate(BRIEF_CHAT, spec).requests == outcome.requests  # the same every time


def test_stretches_of_decodes_change_nothing() -> None:
    spec = FleetSpec(3, REPLICA, policy="round_robin")  # the others look at how often they hear
    at_once = simulate(BRIEF_CHAT, spec)
    stepwise = simulate(BRIEF_CHAT, replace(spec, replica=replace(REPLICA, takes_every_step=True)))
    by_id = {request.request_id: request for request in stepwise.requests}
    for request in at_once.requests:
        twin = by_id[request.request_id]
        assert request.engine_id == twin.engine_id
        assert request.num_cached_tokens == twin.num_cached_tokens
        assert request.first_token_s == pytest.approx(twin.first_token_s, rel=1e-6)
        assert request.end_s == pytest.approx(twin.end_s, rel=1e-6)


@pytest.mark.parametrize("policy", ["headwater", "least_requests"])
def test_more_replicas_make_nobody_wait_longer(policy: str) -> None:
    workload = poisson(
        num_requests=120,
        requests_per_s=8,
        num_prompt_tokens=2000,
        num_answer_tokens=50,
        seed=2,
    )
    means = [simulate(workload, FleetSpec(n, REPLICA, policy)).ttft_s.mean for n in (3, 5, 10)]
    assert means[0] > 1.5 * means[-1]
    for few, more in pairwise(means):
        assert more <= 1.03 * few


def test_a_prompt_that_fits_no_replica_is_refused_and_its_session_goes_on() -> None:
    long = SimulatedRequest("long", 0.0, 300_000, 5, session="s")
    after = SimulatedRequest("after", 0.0, 100, 5, session="s", think_s=2.0)
    outcome = simulate(Workload("w", 128, (long, after)), FleetSpec(2, REPLICA))
    assert outcome.num_refused == 1
    assert [(r.request_id, r.arrival_s) for r in outcome.requests] == [("after", 2.0)]


def test_a_session_thinks_between_answer_and_question() -> None:
    outcome = simulate(CHAT, FleetSpec(3, REPLICA))
    by_id = {request.request_id: request for request in outcome.requests}
    for request in CHAT.requests:
        if request.think_s is not None:
            session, turn = request.request_id.split("-")
            before = by_id[f"{session}-{int(turn) - 1}"]
            expected_s = max(request.arrival_s, before.end_s + request.think_s)
            assert by_id[request.request_id].arrival_s == pytest.approx(expected_s)


def evicted_and_asked_again(host_tokens: int, disk_tokens: int) -> Outcome:
    """One prompt, then others that push it out, then the first one again."""
    names = ["a", "b", "c", "d", "a"]
    requests = [
        SimulatedRequest(
            f"r{number}",
            10.0 * number,
            2060,
            4,
            [(name.encode() + bytes([index])).ljust(16) for index in range(16)],
        )
        for number, name in enumerate(names)
    ]
    replica = replace(REPLICA, num_kv_tokens=5000, host_tokens=host_tokens, disk_tokens=disk_tokens)
    return simulate(Workload("w", 128, tuple(requests)), FleetSpec(1, replica))


@pytest.mark.parametrize(
    ("host_tokens", "disk_tokens", "source", "tokens_per_s"),
    [(20_000, 0, "host", 100_000), (4_500, 20_000, "disk", 20_000)],
)
def test_what_the_accelerator_dropped_comes_back_from_its_node(
    host_tokens: int, disk_tokens: int, source: str, tokens_per_s: int
) -> None:
    bare = evicted_and_asked_again(0, 0).requests[-1]
    assert bare.num_cached_tokens == 0
    outcome = evicted_and_asked_again(host_tokens, disk_tokens)
    again = outcome.requests[-1]
    assert again.num_cached_tokens == again.num_loaded_tokens == 2048
    assert outcome.counts[f"{source}_tokens"] == 2048
    rest_s = MODEL.step_time_s(StepWork(12))
    assert again.ttft_s == pytest.approx(2048 / tokens_per_s + rest_s, rel=0.01)
    assert bare.ttft_s > 2 * again.ttft_s


def test_prefixes_are_pulled_from_the_peer_that_the_policy_names() -> None:
    spec = FleetSpec(4, REPLICA, policy="least_ttft_with_pull")
    pulling = simulate(CHAT, spec)
    assert pulling.counts["peer_tokens"] > 0
    cut_off = replace(REPLICA, model=LinearModel(MODEL.cost))
    assert "peer_tokens" not in simulate(CHAT, replace(spec, replica=cut_off)).counts


def test_what_a_lost_replica_had_begun_starts_over_elsewhere() -> None:
    changes = [FleetChange(20.0, "e1", is_lost=True)]
    outcome = simulate(CHAT, FleetSpec(3, REPLICA, changes=changes))
    assert len(outcome.requests) == len(CHAT)
    assert outcome.counts["restarted"] > 0
    assert not [r for r in outcome.requests if r.engine_id == "e1" and r.end_s > 20.0]
    hours_s = 2 * max(r.end_s for r in outcome.requests) + 20.0
    assert outcome.replica_s == pytest.approx(hours_s)
    assert outcome.cost(3600.0, num_devices=8) == pytest.approx(8 * hours_s)


def test_a_replica_that_drains_ends_what_it_has() -> None:
    changes = [FleetChange(20.0, "e1")]
    outcome = simulate(CHAT, FleetSpec(3, REPLICA, changes=changes))
    assert len(outcome.requests) == len(CHAT)
    assert outcome.counts["restarted"] == 0
    assert not [r for r in outcome.requests if r.engine_id == "e1" and r.arrival_s > 20.0]


def test_one_that_joins_is_neither_starved_nor_stampeded() -> None:
    workload = chat(
        num_sessions=60, sessions_per_s=3.0, num_turns=4, num_system_tokens=1000, seed=7
    )
    changes = [FleetChange(30.0)]
    outcome = simulate(workload, FleetSpec(3, REPLICA, changes=changes))
    share = num_requests_by_engine(outcome, since_s=30.0)
    fair = sum(share.values()) / 4
    assert 0.5 * fair < share["e3"] < 1.5 * fair


def test_the_load_of_a_lost_one_spreads() -> None:
    workload = chat(
        num_sessions=60, sessions_per_s=3.0, num_turns=4, num_system_tokens=1000, seed=7
    )
    changes = [FleetChange(30.0, "e1", is_lost=True)]
    outcome = simulate(workload, FleetSpec(4, REPLICA, changes=changes))
    before = num_requests_by_engine(simulate(workload, FleetSpec(4, REPLICA)), since_s=30.0)
    after = num_requests_by_engine(outcome, since_s=30.0)
    gains = [after[engine] - before[engine] for engine in ("e0", "e2", "e3")]
    assert min(gains) > 0
    assert max(after.values()) < 1.4 * sum(after.values()) / 3


def test_settings_that_make_no_fleet_are_refused() -> None:
    with pytest.raises(FleetSpecError, match="at least one replica"):
        FleetSpec(0, REPLICA)
    with pytest.raises(FleetSpecError, match="stale_s"):
        FleetSpec(1, REPLICA, stale_s=-1.0)
    with pytest.raises(FleetSpecError, match="no routing policy 'nobody'"):
        simulate(CHAT, FleetSpec(1, REPLICA, policy="nobody"))
    with pytest.raises(FleetSpecError, match="less than one block"):
        simulate(CHAT, FleetSpec(1, replace(REPLICA, num_kv_tokens=100)))
    with pytest.raises(FleetSpecError, match="e9 leaves"):
        simulate(CHAT, FleetSpec(1, REPLICA, changes=[FleetChange(1.0, "e9")]))
    with pytest.raises(FleetSpecError, match="set host_tokens"):
        replace(REPLICA, disk_tokens=1000)
    with pytest.raises(FleetSpecError, match="host_tokens_per_s is 0"):
        ReplicaSpec(LinearModel(MODEL.cost), 1000, host_tokens=1000)
    with pytest.raises(FleetSpecError, match="take 16, 32"):
        block_units(100)
    too_long = SimulatedRequest("r", 0.0, 300_000, 5)
    with pytest.raises(SimulationError, match="no request was answered"):
        simulate(Workload("w", 128, (too_long,)), FleetSpec(1, REPLICA))


def test_classes_are_heard_by_the_engine() -> None:
    config = EngineConfig(runner="paced", max_num_seqs=1, max_step_stretch=None)
    batch = [
        SimulatedRequest(f"b{n}", 0.0, 1000, 50, service_class=ServiceClass.BATCH) for n in range(3)
    ]
    urgent = SimulatedRequest("u", 0.5, 1000, 50, service_class=ServiceClass.INTERACTIVE)
    spec = FleetSpec(1, replace(REPLICA, config=config))
    ended = simulate(Workload("w", 128, (*batch, urgent)), spec).requests
    assert ended[0].request_id == "u"
