"""Workloads: what they hold, how they are stretched, what a cache could find, what is made up."""

from itertools import pairwise

import pytest

from simulator.errors import SimulationError
from simulator.synthetic import chat, poisson
from simulator.workload import SimulatedRequest, Workload, affinity_of, followers, hit_ceiling


def key(number: int) -> bytes:
    return bytes([number]) * 16


REQUESTS = (
    SimulatedRequest("a", 0.0, 40, 5, [key(1), key(2)], session="s"),
    SimulatedRequest("b", 3.0, 50, 5, [key(1), key(2), key(3)], session="s", think_s=1.0),
    SimulatedRequest("c", 6.0, 32, 5, [key(1), key(2)]),
)
WORKLOAD = Workload("w", 16, REQUESTS)


def test_the_ceiling_counts_what_was_asked_before_and_computes_the_last_token() -> None:
    # Of b 32 tokens were asked before; of c all 32, of which the last is computed again.
    assert hit_ceiling(WORKLOAD) == (32 + 31) / (40 + 50 + 32)


def test_a_session_goes_on_where_its_last_answer_ended() -> None:
    assert followers(WORKLOAD) == {"a": REQUESTS[1]}


def test_requests_of_a_session_and_prompts_that_begin_alike_belong_together() -> None:
    a, b, c = (affinity_of(request, 16) for request in REQUESTS)
    assert a == b != c
    assert affinity_of(REQUESTS[2], 2048) == affinity_of(
        SimulatedRequest("d", 0.0, 32, 1, [key(1), key(9)]), 2048
    )
    assert affinity_of(SimulatedRequest("e", 0.0, 3, 1), 16) is None


def test_arrivals_become_denser_or_are_spread_within_their_tick() -> None:
    assert [r.arrival_s for r in WORKLOAD.accelerated(3.0).requests] == [0.0, 1.0, 2.0]
    spread = WORKLOAD.spread(3.0, seed=1).requests
    assert [r.request_id for r in spread] == ["a", "b", "c"]
    assert all(
        0 < new.arrival_s - old.arrival_s < 3 for new, old in zip(spread, REQUESTS, strict=True)
    )
    with pytest.raises(SimulationError, match="factor > 0"):
        WORKLOAD.accelerated(0.0)


def test_a_workload_without_requests_is_refused() -> None:
    with pytest.raises(SimulationError, match="holds no requests"):
        Workload("empty", 16, ())


def test_made_up_requests_share_their_system_prompt_and_nothing_else() -> None:
    workload = poisson(
        num_requests=50,
        requests_per_s=10,
        num_prompt_tokens=1500,
        num_answer_tokens=50,
        num_shared_tokens=1024,
        seed=3,
    )
    keys = [set(request.block_keys) for request in workload.requests]
    shared = keys[0] & keys[1]
    assert len(shared) == 8
    assert all(a & b == shared for a, b in pairwise(keys))
    assert all(len(r.block_keys) == r.num_prompt_tokens // 128 for r in workload.requests)
    assert workload == poisson(
        num_requests=50,
        requests_per_s=10,
        num_prompt_tokens=1500,
        num_answer_tokens=50,
        num_shared_tokens=1024,
        seed=3,
    )


def test_a_chat_repeats_what_was_said_until_it_is_trimmed() -> None:
    workload = chat(
        num_sessions=1, sessions_per_s=1.0, num_turns=12, max_history_tokens=1500, seed=1
    )
    turns = workload.requests
    grown = 0
    for before, after in pairwise(turns):
        if after.num_prompt_tokens > before.num_prompt_tokens + before.num_answer_tokens:
            grown += 1
            assert after.block_keys[: len(before.block_keys)] == before.block_keys
        else:
            assert after.block_keys[:15] == before.block_keys[:15]  # the system prompt
    assert 0 < grown < 11
    assert [turn.think_s is None for turn in turns] == [True] + [False] * 11
