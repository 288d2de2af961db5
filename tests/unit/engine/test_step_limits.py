"""The limits in force: the least of those for memory's sake and for that of the streams."""

import pytest

from engine.config import EngineConfig
from engine.step import ScheduledSequence, StepPlan
from engine.step_limits import StepLimits
from engine.step_time import StepWork

BASE_S, PER_PREFILL_S, PER_DECODE_S = 0.008, 0.00025, 0.0001
SIXTEEN = StepWork(num_decodes=16, num_context_tokens=1600)
DECODE_S = BASE_S + 16 * PER_DECODE_S


def make_plan(step_id: int, num_decodes: int, num_prefill_tokens: int) -> StepPlan:
    decodes = [ScheduledSequence(i, 100, (), True) for i in range(num_decodes)]
    prompts = []
    if num_prefill_tokens:
        prompts = [ScheduledSequence(99, 0, (7,) * num_prefill_tokens, False)]
    return StepPlan(step_id, (), (), (), (), (*decodes, *prompts))


def make_limits(
    *, target_s: float | None = None, max_step_stretch: float | None = 2.0, num_steps: int = 200
) -> StepLimits:
    """After ``num_steps`` of many sizes, back to back, with a tenth of their time between them."""
    limits = StepLimits(
        EngineConfig(
            max_num_seqs=64,
            max_num_batched_tokens=512,
            min_prefill_chunk_tokens=16,
            tpot_target_s=target_s,
            max_step_stretch=max_step_stretch,
        )
    )
    now_s = 50.0
    for step in range(num_steps):
        num_decodes, num_prefill = 1 + step * 7 % 40, 0 if step % 2 else 1 + step * 31 % 200
        time_s = BASE_S + PER_DECODE_S * num_decodes + PER_PREFILL_S * num_prefill
        limits.record_time(
            make_plan(step, num_decodes, num_prefill),
            started_s=now_s + 0.1 * time_s,
            ended_s=now_s + time_s,
        )
        now_s += time_s
    return limits


def prompt_tokens(limits: StepLimits, decodes: StepWork, num_prompts: int = 1) -> int:
    return limits.prompt_tokens(decodes, start=0, num_prompts=num_prompts)


def test_before_steps_were_measured_the_budget_is_what_decodes_leave_of_the_configured_one() -> (
    None
):
    for target_s in (None, 0.02):
        limits = make_limits(target_s=target_s, num_steps=0)
        assert prompt_tokens(limits, SIXTEEN) == 512 - 16
        assert (limits.max_tokens, limits.max_seqs, limits.max_context_tokens) == (512, 64, None)
        assert limits.reason == "configured"


def test_one_prompt_stretches_a_step_of_decodes_twofold_and_a_queue_as_often_as_it_is_long() -> (
    None
):
    limits = make_limits()
    alone = prompt_tokens(limits, SIXTEEN)
    assert abs(alone - DECODE_S / PER_PREFILL_S) <= 2
    assert abs(prompt_tokens(limits, SIXTEEN, num_prompts=3) - 3 * alone) <= 3
    assert prompt_tokens(limits, SIXTEEN, num_prompts=30) == 512 - 16
    assert limits.reason == "configured"


def test_a_stretch_too_small_for_the_smallest_chunk_leaves_it() -> None:
    assert prompt_tokens(make_limits(max_step_stretch=1.001), SIXTEEN) == 16


def test_without_a_stretch_or_with_nobody_decoding_the_whole_budget_is_used() -> None:
    assert prompt_tokens(make_limits(max_step_stretch=None), SIXTEEN) == 512 - 16
    for limits in (make_limits(), make_limits(target_s=0.02)):
        assert prompt_tokens(limits, StepWork()) == 512


def test_with_a_target_a_step_ends_just_before_it() -> None:
    limits = make_limits(target_s=0.030)
    for num_decodes in (1, 16, 40):
        decodes = StepWork(num_decodes=num_decodes, num_context_tokens=100 * num_decodes)
        tokens = prompt_tokens(limits, decodes, num_prompts=50)
        time_s = BASE_S + PER_DECODE_S * num_decodes + PER_PREFILL_S * tokens
        assert 0.9 * 0.030 < time_s <= 0.030
    assert limits.reason == "tpot_target"
    assert 78 <= limits.max_tokens <= (0.030 - BASE_S) / PER_PREFILL_S == 88


def test_with_a_target_so_many_may_run_that_the_smallest_chunk_still_fits() -> None:
    limits = make_limits(target_s=0.015, num_steps=1000)
    at_most = (0.015 - BASE_S - 16 * PER_PREFILL_S) / PER_DECODE_S
    assert 0.85 * at_most <= limits.max_seqs <= at_most
    assert limits.max_seqs_of_memory == 64


def test_an_unreachable_target_leaves_one_sequence_and_the_smallest_chunk() -> None:
    limits = make_limits(target_s=0.001)
    assert (limits.max_seqs, limits.max_tokens) == (1, 16)
    assert prompt_tokens(limits, SIXTEEN) == 16


def test_a_target_that_the_configured_limits_hold_changes_nothing() -> None:
    limits = make_limits(target_s=10.0)
    assert (limits.max_tokens, limits.max_seqs, limits.max_context_tokens) == (512, 64, None)
    assert limits.reason == "configured"


def test_the_smaller_of_the_limits_for_memory_and_for_the_target_holds() -> None:
    limits = make_limits(target_s=0.030)
    before = limits.max_tokens
    assert limits.shrink(make_plan(1, 0, 512))
    assert (limits.max_tokens, limits.reason) == (before, "tpot_target")
    assert limits.shrink(make_plan(1, 0, 64))
    assert (limits.max_tokens, limits.reason) == (32, "memory")
    assert prompt_tokens(limits, SIXTEEN) == 16
    assert prompt_tokens(limits, StepWork()) == 32


def test_idle_time_does_not_count_as_part_of_a_step() -> None:
    limits = make_limits(target_s=0.030)
    before = limits.max_tokens
    for step in range(200):
        started_s = 1000.0 + 5.0 * step
        time_s = BASE_S + PER_DECODE_S * 16
        limits.record_time(make_plan(step, 16, 0), started_s=started_s, ended_s=started_s + time_s)
    assert limits.max_tokens == before
    assert limits.max_seqs > 40


DECODES = StepWork(num_decodes=4, num_context_tokens=400)


def test_idle_steps_have_any_time_to_spare() -> None:
    assert StepLimits(EngineConfig()).spare_s(StepWork()) is None


def test_a_step_spares_what_its_stretch_allows_beside_its_decodes() -> None:
    limits = StepLimits(EngineConfig(max_step_stretch=1.5))
    limits.step_times._num_prefills = limits.step_times._num_decodes = 100
    limits.step_times.base_s = 0.02

    assert limits.spare_s(DECODES) == pytest.approx(0.01)


def test_a_step_spares_what_a_target_leaves_and_never_less_than_nothing() -> None:
    limits = StepLimits(EngineConfig(tpot_target_s=0.05))
    limits.step_times._num_prefills = limits.step_times._num_decodes = 100
    limits.step_times.error = 0.0
    limits.step_times.base_s = 0.02
    assert limits.spare_s(DECODES) == pytest.approx(0.03)
    limits.step_times.base_s = 0.07
    assert limits.spare_s(DECODES) == 0.0
