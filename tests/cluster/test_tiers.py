"""KV that leaves an accelerator is found again, over HTTP: on its node, and from the other node.

The tests follow one another on one cluster: each leaves to the next what it has stored.
"""

import os
from collections.abc import Iterator, Sequence

import pytest

from tests.cluster.processes import engine_of, replicas, wait_until
from tests.cluster.tiers import (
    MAX_IDLE_S,
    MODEL,
    PROMPT_TOKENS,
    Asked,
    Tiers,
    node_caches,
    prompt_of,
    running_tiers,
)

NUM_FIRST = 9
"""Prompts: one of two accelerators, which hold less than three each, gets five or more."""
MOST = PROMPT_TOKENS - 100
NUM_ENGINES = 2

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    # Ray's own test cluster leaves log files open.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def ask_side_by_side(tiers: Tiers, numbers: Sequence[int]) -> list[Asked]:
    """A few at a time: of one after the other all may go to the engine that is a little faster."""
    return [
        asked
        for begin in range(0, len(numbers), 8)
        for asked in tiers.ask_all(
            [prompt_of(number) for number in numbers[begin : begin + 8]], num_tokens=2
        )
    ]


@pytest.fixture(scope="module")
def tiers() -> Iterator[Tiers]:
    with pytest.MonkeyPatch.context() as patch, running_tiers(patch) as tiers:
        yield tiers


def test_what_an_accelerator_evicted_comes_back_from_its_nodes_memory(tiers: Tiers) -> None:
    first = [tiers.ask(prompt_of(number)) for number in range(NUM_FIRST)]
    engines = [asked.engine for asked in first]
    engine = max(engines, key=engines.count)
    evicted = [number for number in range(NUM_FIRST) if engines[number] == engine][:2]

    again = [tiers.ask(prompt_of(number)) for number in evicted]

    for asked in again:
        assert (asked.engine, asked.source) == (engine, "host")
        assert asked.restored["host"] > MOST
        assert asked.cached_tokens >= asked.restored["host"]


def test_a_prefix_of_a_busy_node_is_pulled_by_the_other(tiers: Tiers) -> None:
    shared = prompt_of(500)
    holder = tiers.ask(shared).engine

    asked = tiers.ask_all([[*shared, 3000 + number] for number in range(16)], num_tokens=40)

    pulled = [one for one in asked if one.restored.get("peer", 0) > MOST]
    assert pulled, asked
    assert "peer" in {one.source for one in pulled}
    assert holder not in {one.engine for one in pulled}


def test_what_leaves_memory_comes_back_from_disk(tiers: Tiers) -> None:
    ask_side_by_side(tiers, range(100, 180))  # more than both nodes' memory holds

    again = [tiers.ask(prompt_of(number)) for number in (*range(NUM_FIRST), *range(100, 130))]

    # One of the nodes has no disk: what it had is lost. It may also pull from the other one.
    from_disk = [asked for asked in again if asked.restored.get("disk", 0) > MOST]
    assert {asked.source for asked in from_disk} == {"disk"}, again


@pytest.mark.parametrize("source", ["host", "disk", "peer"])
def test_loads_are_predicted_and_most_take_about_as_long(tiers: Tiers, source: str) -> None:
    ratios = tiers.samples("headwater:transfer_seconds_ratio_bucket")

    def num_within(bound: str) -> float:
        return ratios.get((bound, source), 0.0)

    num_loads = num_within("+Inf")
    assert num_loads > 0
    num_learned = num_loads - NUM_ENGINES  # the first one of each was a guess
    assert num_within("2.0") - num_within("0.5") >= num_learned / 2, ratios


def test_a_replica_that_was_killed_and_started_again_finds_its_prefixes_warm(
    tiers: Tiers,
) -> None:
    numbers = range(200, 224)
    ask_side_by_side(tiers, numbers)
    before = tiers.engines()
    replicas(os.getpid(), engine_of(MODEL.name))[0].kill()
    wait_until(lambda: len(tiers.engines() - before) == 1, timeout_s=30, what="a new replica")
    tiers.wait_for_engines(2, timeout_s=30)

    # The newest were only on its accelerator; those before them are in its node's memory.
    again = ask_side_by_side(tiers, numbers[::-1])

    warm = [sum(asked.restored.values()) for asked in again if asked.engine not in before]
    assert max(warm, default=0) > MOST, again


def test_requests_go_on_without_a_cache_and_a_new_one_is_made(tiers: Tiers) -> None:
    killed = node_caches()[0]
    killed.kill()
    for number in range(300, 306):
        tiers.ask(prompt_of(number))

    def is_back() -> bool:
        is_connected = tiers.samples("headwater:kv_tier_connected")
        return len(node_caches()) == 2 and list(is_connected.values()) == [1.0, 1.0]

    wait_until(is_back, timeout_s=30, what="both engines have a cache again")
    assert killed.pid not in {process.pid for process in node_caches()}
    assert tiers.num_pages_with("headwater:node_cache_store_blocks") == 2, "found where it was"


def test_caches_end_when_no_engine_uses_them(tiers: Tiers) -> None:
    tiers.remove_model()
    wait_until(
        lambda: not node_caches(), timeout_s=MAX_IDLE_S + 20, what="the caches end by themselves"
    )
