"""The replay through the hierarchy does what policies and bounds say."""

import asyncio
from collections import OrderedDict

import pytest

from benchmarks.routing_workload import Conversations
from benchmarks.tier_replay import Trace, infinite, make_trace, offline, replay
from cache_tiers.keys import BlockKey

NUM_SLOTS = 256


@pytest.fixture(scope="module")
def trace() -> Trace:
    shape = Conversations(first_tokens=3000)
    return make_trace("chat", shape.workload("chat", 250, 1.0, seed=1))


def plain_lru(trace: Trace, num_slots: int) -> float:
    held: OrderedDict[BlockKey, None] = OrderedDict()
    num_hits = num_tokens = 0
    for prompt in trace.prompts:
        num_found = next((i for i, k in enumerate(prompt.keys) if k not in held), len(prompt.keys))
        num_hits += num_found * trace.block_size_tokens
        num_tokens += prompt.num_tokens
        for key in reversed(prompt.keys):
            held[key] = None
            held.move_to_end(key)
        while len(held) > num_slots:
            held.popitem(last=False)
    return num_hits / num_tokens


def test_lru_in_the_hierarchy_is_lru(trace: Trace) -> None:
    hits = asyncio.run(replay(trace, "lru", NUM_SLOTS))
    assert 0.2 < hits < infinite(trace)
    assert hits == pytest.approx(plain_lru(trace, NUM_SLOTS), abs=0.01)


def test_no_policy_passes_the_bounds(trace: Trace) -> None:
    best = offline(trace, NUM_SLOTS)
    assert best <= infinite(trace)
    assert asyncio.run(replay(trace, "value", NUM_SLOTS)) <= best
    assert offline(trace, 10**6) == pytest.approx(infinite(trace))
