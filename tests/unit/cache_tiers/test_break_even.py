"""How much is loaded, and how much computed."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_tiers.break_even import BLIND_LOAD_S, Candidate, Medium, choose
from cache_tiers.media_rates import PRIOR_RATES, MediumRate
from cache_tiers.messages import RecomputeCost
from cache_tiers.tier import TierKind

MIB = 1024**2
HOST, DISK, PEER = TierKind.HOST, TierKind.DISK, TierKind.PEER
COST = RecomputeCost(step_s=0.01, step_tokens=1024, token_s=1e-4, attended_s=1e-9)


def media(**byte_s: float) -> dict[TierKind, Medium]:
    rates = {kind: Medium(rate, 0.0) for kind, rate in PRIOR_RATES.items()}
    return rates | {TierKind(k): Medium(MediumRate(1e-3, v), 0.0) for k, v in byte_s.items()}


def candidate(*kinds: TierKind, num_prompt_tokens: int = 0) -> Candidate:
    return Candidate(kinds, [256] * len(kinds), MIB, 0, num_prompt_tokens)


def test_loads_what_is_quicker_to_load() -> None:
    choice = choose(candidate(*[DISK] * 8), media(disk=1e-9), COST)
    assert choice.num_blocks == 8
    assert choice.load_s == pytest.approx(1e-3 + 8 * MIB * 1e-9)
    assert choice.saved_s > 0.1


def test_computes_what_is_quicker_to_compute() -> None:
    assert choose(candidate(*[DISK] * 8), media(disk=1e-6), COST).num_blocks == 0


@pytest.mark.parametrize(
    ("queue_s", "saved_s"),
    [
        # Computed: 2 steps of .01, 1536 tokens of .0001, 1536²/2 attended of 1e-9: .174780.
        # Loaded: .001 + 4 MiB of 1e-8 and .0002 + 4 MiB of 1e-10 to copy: .043562; then
        # 1 step, 512 tokens, (1536² - 1024²)/2 attended: .061855.
        (0.0, 0.174780 - 0.043562 - 0.061855),
        (0.02, 0.02 + 0.174780 - 0.043562 - 0.061855),
        (0.1, 0.174780 - 0.061855),
    ],
)
def test_what_is_saved_is_what_a_sheet_of_paper_says(queue_s: float, saved_s: float) -> None:
    cost = RecomputeCost(step_s=0.01, step_tokens=1024, token_s=1e-4, attended_s=1e-9)
    cost = msgspec.structs.replace(cost, queue_s=queue_s)
    choice = choose(candidate(*[DISK] * 4, num_prompt_tokens=1536), media(disk=1e-8), cost)
    assert choice.num_blocks == 4
    assert choice.load_s == pytest.approx(0.042943, abs=1e-6)
    assert choice.saved_s == pytest.approx(saved_s, abs=1e-5)


def test_a_medium_that_hangs_is_not_waited_for() -> None:
    hanging = media(disk=1e-9)
    hanging[DISK] = Medium(hanging[DISK].rate, waiting_s=math.inf)
    for cost in (COST, RecomputeCost(), RecomputeCost(0.01, 1024, 1e-4, 0.0, queue_s=1e6)):
        assert choose(candidate(HOST, DISK, HOST), hanging, cost).num_blocks == 1


def test_stops_where_a_slow_medium_begins() -> None:
    kinds = [HOST] * 3 + [DISK] * 3
    assert choose(candidate(*kinds), media(disk=1e-6), COST).num_blocks == 3


def test_loading_is_free_as_long_as_the_engine_is_busy() -> None:
    busy = RecomputeCost(step_s=0.01, step_tokens=1024, token_s=1e-4, queue_s=10.0)
    slow = media(disk=1e-6)
    assert choose(candidate(*[DISK] * 8), slow, busy).num_blocks == 8


def test_what_waits_for_a_medium_counts() -> None:
    crowded = media(disk=1e-9)
    crowded[DISK] = Medium(crowded[DISK].rate, waiting_s=5.0)
    assert choose(candidate(*[DISK] * 8), crowded, COST).num_blocks == 0


def test_media_load_side_by_side() -> None:
    both = choose(candidate(*[DISK, PEER] * 4), media(disk=1e-9, peer=1e-9), COST)
    assert both.load_s == pytest.approx(1e-3 + 4 * MIB * 1e-9)


def test_without_known_costs_little_is_waited_for() -> None:
    unknown = RecomputeCost()
    assert choose(candidate(*[HOST] * 500), media(disk=1e-6), unknown).num_blocks == 500
    slow = choose(candidate(HOST, *[DISK] * 8), media(disk=1e-6), unknown)
    assert slow.num_blocks == 2
    assert slow.load_s <= BLIND_LOAD_S


def test_nothing_to_load_is_nothing_loaded() -> None:
    assert choose(candidate(), media(), COST).num_blocks == 0
    assert choose(candidate(), media(), RecomputeCost()).num_blocks == 0


@given(
    st.lists(st.sampled_from([HOST, DISK, PEER]), max_size=12),
    st.floats(1e-12, 1e-6),
    st.floats(1e-12, 1e-6),
    st.floats(0, 1),
    st.integers(0, 5000),
)
def test_no_other_length_is_better(
    kinds: list[TierKind], disk: float, peer: float, queue_s: float, num_prompt_tokens: int
) -> None:
    cost = RecomputeCost(0.01, 512, 1e-4, 1e-8, queue_s)
    rates = media(disk=disk, peer=peer)

    def total_s(num_blocks: int) -> float:
        loads = [0.0]
        for kind in (DISK, PEER):
            count = kinds[:num_blocks].count(kind)
            loads.append(rates[kind].rate.seconds(count * MIB))
        copy_s = rates[HOST].rate.seconds(num_blocks * MIB)
        begin, end = num_blocks * 256, max(num_prompt_tokens, len(kinds) * 256)
        num_steps = max(1, -(-(end - begin) // 512))
        computed_s = num_steps * 0.01 + (end - begin) * 1e-4 + (end**2 - begin**2) / 2 * 1e-8
        return max(max(loads) + copy_s, queue_s) + computed_s

    choice = choose(candidate(*kinds, num_prompt_tokens=num_prompt_tokens), rates, cost)
    best_s = min(total_s(num) for num in range(len(kinds) + 1))
    assert total_s(choice.num_blocks) == pytest.approx(best_s)
    assert choice.saved_s == pytest.approx(total_s(0) - best_s, abs=1e-9)
