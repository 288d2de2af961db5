from dataclasses import replace
from itertools import pairwise

import pytest

from autoscaler.throughput import RequestMix, StepCosts, Targets, max_rate, ttft_alone_s

COSTS = StepCosts(
    base_s=0.015,
    prefill_token_s=2e-5,
    attended_s=0.0,
    decode_s=1e-4,
    step_tokens=2048.0,
    most_running=512.0,
)
MIX = RequestMix(prompt_len=2000.0, uncached_len=1000.0, answer_len=300.0)
TARGETS = Targets(ttft_s=0.7, tpot_s=0.04)


def rate(num: int = 8, *, targets: Targets = TARGETS, **changes: float) -> float:
    costs = {key: value for key, value in changes.items() if hasattr(COSTS, key)}
    mix = {key: value for key, value in changes.items() if hasattr(MIX, key)}
    return max_rate(replace(COSTS, **costs), replace(MIX, **mix), targets, num)


def test_decode_bound_replicas_follow_the_formula_of_their_steps() -> None:
    """Without prefill, and with so many replicas that nothing is left to chance: a step takes base
    / (1 - rate × work) and may take the TPOT target."""
    found = rate(10**9, uncached_len=0.0, answer_len=200.0)
    assert found == pytest.approx((1 - 0.015 / 0.04) / (200 * 1e-4), rel=0.01)


def test_few_replicas_need_more_headroom_than_many() -> None:
    rates = [rate(num) for num in (1, 2, 4, 16, 64, 1024)]
    assert rates == sorted(rates)
    assert rates[0] < 0.95 * rates[-1]


@pytest.mark.parametrize(
    "change",
    [
        {"uncached_len": 2000.0},
        {"answer_len": 600.0},
        {"prefill_token_s": 4e-5},
        {"decode_s": 2e-4},
        {"base_s": 0.02},
        {"most_running": 30.0},
        {"attended_s": 1e-8},
        {"targets": Targets(0.7, 0.025)},
        {"targets": Targets(0.15, 0.04)},
    ],
)
def test_more_work_or_less_time_is_a_smaller_rate(change: dict[str, object]) -> None:
    assert rate(**change) < 0.97 * rate()  # type: ignore[arg-type]


def test_prefix_hits_cost_nothing_and_others_their_prefill() -> None:
    rates = [rate(uncached_len=2000.0 * miss) for miss in (0.0, 0.1, 0.5, 1.0)]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 1.8 * rates[-1]


def test_long_prompts_among_short_ones_cost_headroom() -> None:
    tight = Targets(ttft_s=0.3, tpot_s=0.04)
    heavy = {"answer_len": 20.0, "prompt_tail": 8.0}
    assert rate(2, targets=tight, **heavy) < rate(2, targets=tight, answer_len=20.0)


def test_what_a_fleet_bears_is_told_by_how_prompts_differ_and_not_by_their_mean_alone() -> None:
    """While a short answer is made, a long prompt or two may come, however patient the first token
    is."""
    patient = {"targets": Targets(60.0, 0.04), "answer_len": 100.0}
    rates = [rate(prompt_tail=tail, **patient) for tail in (1.0, 2.0, 4.0)]  # type: ignore[arg-type]
    assert rates[0] > 1.02 * rates[1] > 1.07 * rates[2]


def test_answers_of_a_token_have_no_pace_to_keep() -> None:
    """A prompt takes 35 ms: what is left of a replica for chance is less than half."""
    assert rate(answer_len=1.0) > 0.5 / (1000 * 2e-5 + 0.015)


def test_what_is_cached_makes_prompts_shorter_and_no_more_alike() -> None:
    mixes = [replace(MIX, uncached_len=length) for length in (2000.0, 1000.0, 500.0)]
    assert [mix.variability for mix in mixes] == sorted(mix.variability for mix in mixes)
    assert mixes[2].variability > 2 * mixes[0].variability


def test_a_target_that_no_replica_meets_asks_for_a_finite_number() -> None:
    impossible = Targets(ttft_s=1e-3, tpot_s=1e-3)
    assert rate(targets=impossible) > 0.5


def test_more_replicas_are_always_worth_something() -> None:
    totals = [num * rate(num) for num in range(1, 40)]
    assert all(later > former for former, later in pairwise(totals))


def test_a_prompt_alone_takes_its_steps() -> None:
    mix = replace(MIX, uncached_len=4096.0)
    assert ttft_alone_s(COSTS, mix) == pytest.approx(2 * 0.015 + 4096 * 2e-5)
