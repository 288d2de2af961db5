"""The benchmark of routing on little traffic: what it measures is so, and it runs without files."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from app.routing.candidate import ReplicaRates
from benchmarks.routing import TracesMissing, find_traces, make_spec, measure_loads
from benchmarks.routing_cases import best_published
from benchmarks.routing_ray import BlockText, compare
from benchmarks.routing_scenarios import agentic_spec, coarsened, join, lose, shared_prompt
from benchmarks.routing_workload import CHAT, SHARED_PROMPT
from simulator.policies.registry import create_policy
from simulator.routing_bound import bound
from simulator.routing_model import RoutingModel
from simulator.workload import SimulatedRequest, Workload, hit_ceiling


@pytest.fixture(scope="module")
def chat() -> Workload:
    return CHAT.busy_workload("chat", 400, 48_000, 0.6, seed=1)


def test_conversations_grow_come_in_order_and_begin_alike(chat: Workload) -> None:
    arrivals = [request.arrival_s for request in chat.requests]
    assert arrivals == sorted(arrivals)
    assert len({tuple(request.block_keys[:1]) for request in chat.requests}) <= 2
    conversations: dict[str, list[SimulatedRequest]] = {}
    for request in chat.requests:
        conversations.setdefault(request.request_id.split("-")[0], []).append(request)
    pairs = [pair for turns in conversations.values() for pair in pairwise(turns)]
    assert len(pairs) > 50
    for before, after in pairs:
        assert after.num_prompt_tokens > before.num_prompt_tokens
        assert list(after.block_keys[: len(before.block_keys)]) == list(before.block_keys)


def test_the_load_is_the_one_asked_for(chat: Workload) -> None:
    num_tokens = sum(request.num_prompt_tokens for request in chat.requests)
    computed = num_tokens * (1 - hit_ceiling(chat))
    assert computed / 48_000 / chat.duration_s == pytest.approx(0.6)
    assert CHAT.busy_workload("chat", 400, 48_000, 0.6, seed=1) == chat
    with pytest.raises(ValueError, match="between 0 and 1"):
        CHAT.busy_workload("chat", 400, 48_000, 1.2, seed=1)


def test_all_policies_stand_side_by_side_with_their_bound(chat: Workload) -> None:
    cases = measure_loads("t", [chat.first(60)] * 5, [6000], {"stale": {6000: 1.5}})
    by_name = {case.case: case for case in cases}
    assert len(by_name) == len(cases)
    ours = by_name["t_6000_stale_headwater_ttft_mean"]
    assert (ours.limit, ours.peer_value) == (
        1.5,
        by_name[f"t_6000_stale_{ours.peer}_ttft_mean"].value,
    )
    limit = by_name["t_6000_bound_ttft_mean"].value
    assert by_name["t_6000_exact_round_robin_ttft_mean"].limit == limit
    means = [c.value for name, c in by_name.items() if name.endswith("_ttft_mean")]
    assert min(means) == limit


def test_the_best_published_policy_is_none_of_ours(chat: Workload) -> None:
    spec = make_spec(6000)
    outcomes = {
        name: RoutingModel(spec, create_policy(name), chat).run()
        for name in ("round_robin", "dynamo_tuned", "least_ttft_with_pull")
    }
    assert best_published(outcomes) == "dynamo_tuned"
    assert bound(spec, chat).ttft_s.mean < outcomes["least_ttft_with_pull"].ttft_s.mean


def test_round_robin_gives_a_newcomer_its_share_and_spreads_what_a_lost_one_had(
    chat: Workload,
) -> None:
    spec, policy = make_spec(6000), create_policy("round_robin")
    when_s = chat.duration_s / 4
    joined = join(spec, policy, chat, when_s)
    # 1 of 9 in turn; in less than a minute of traffic the rest is rounding.
    assert joined.shares_by_minute[0] == pytest.approx(1.0, abs=0.1)
    assert lose(spec, policy, chat, when_s).imbalance < 1.15


def test_what_a_lost_replica_had_spreads_though_homes_no_longer_divide_the_fleet() -> None:
    """Seven replicas are left to four gateways."""
    spec, workload = make_spec(6000, is_stale=True), CHAT.busy_workload("", 3000, 48_000, 0.5, 1)
    lost = lose(spec, create_policy("headwater"), workload, workload.duration_s / 4)
    assert lost.prefill_imbalance < 1.15
    assert lost.imbalance < 1.15


def test_a_shared_prompt_is_hit_everywhere_in_turn() -> None:
    result = shared_prompt(make_spec(6000), create_policy("round_robin"), 400)
    assert result.imbalance == pytest.approx(1.0, abs=0.01)
    # Each of 8 replicas computes the prompt once, instead of one for all.
    assert 0.97 < result.share_of_ceiling < 1.0


def test_coding_agents_meet_accelerators_that_hold_a_fraction() -> None:
    workload = SHARED_PROMPT.workload("agents", 50, 1.0, seed=0)
    spec = agentic_spec(workload, num_replicas=2)
    keys = {key for request in workload.requests for key in request.block_keys}
    assert spec.cache_tokens == len(keys) * 128 // 8
    assert spec.disk_tokens == len(keys) * 128


def test_every_fourth_key_tells_where_prompts_part(chat: Workload) -> None:
    coarse = coarsened(chat, 4)
    assert coarse.block_size_tokens == 2048
    longest = max(chat.requests, key=lambda request: request.num_prompt_tokens)
    same = next(r for r in coarse.requests if r.request_id == longest.request_id)
    assert list(same.block_keys) == list(longest.block_keys[3::4])
    assert len(same.block_keys) == longest.num_prompt_tokens // 2048


def test_ours_chooses_as_the_tree_that_ray_ships(chat: Workload) -> None:
    agreement = compare(chat.first(200), 4)
    assert agreement.num_requests > 150
    assert agreement.num_same == agreement.num_requests


def test_equal_beginnings_are_equal_text(chat: Workload) -> None:
    texts = BlockText()
    a = replace(chat.requests[0], block_keys=[b"x", b"y"])
    b = replace(chat.requests[0], block_keys=[b"x", b"z", b"y"])
    assert texts.of(a)[0] == texts.of(b)[0]
    assert texts.of(a)[1] == texts.of(b)[2] != texts.of(b)[1]


def test_missing_traces_are_named_with_where_they_come_from(tmp_path: Path) -> None:
    with pytest.raises(TracesMissing, match="HEADWATER_TRACES names no folder"):
        find_traces(None)
    with pytest.raises(
        TracesMissing, match=r"conversation_trace.jsonl is not there[^$]*kvcache-ai"
    ):
        find_traces(tmp_path)
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake/conversation_trace.jsonl").touch()
    with pytest.raises(TracesMissing, match="agentic_coding is not there"):
        find_traces(tmp_path)
    (tmp_path / "agentic_coding").mkdir()
    (tmp_path / "agentic_coding/trace.json.gz").touch()
    assert find_traces(tmp_path)[1] == tmp_path / "agentic_coding"


def test_rates_are_those_of_the_load() -> None:
    assert make_spec(4600).rates == ReplicaRates(
        prefill_token_s=1 / 4600, peer_tokens_per_s=60_000.0
    )
