"""Limits for the sake of memory: halved when it does not suffice, raised slowly when it does."""

from engine.config import EngineConfig
from engine.memory_limits import GOOD_STEPS_PER_RAISE, MemoryLimits
from engine.step import ScheduledSequence, StepPlan

CONFIG = EngineConfig(max_num_seqs=64, max_num_batched_tokens=512, min_prefill_chunk_tokens=16)


def make_plan(num_decodes: int, *chunks: int) -> StepPlan:
    decodes = [ScheduledSequence(i, 9, (), True, (), (i,)) for i in range(num_decodes)]
    prompts = [ScheduledSequence(99 + i, 0, (7,) * chunk, False) for i, chunk in enumerate(chunks)]
    return StepPlan(1, (), (), (), (), (*decodes, *prompts))


def test_the_budget_is_halved_down_to_the_smallest_chunk() -> None:
    limits, seen = MemoryLimits(CONFIG), []
    while limits.max_tokens > 16:
        assert limits.shrink(make_plan(0, limits.max_tokens))
        seen.append(limits.max_tokens)
    assert seen == [256, 128, 64, 32, 16]
    assert limits.max_seqs == 64


def test_half_of_a_step_that_was_smaller_than_the_budget_is_taken() -> None:
    limits = MemoryLimits(CONFIG)
    assert limits.shrink(make_plan(20, 100))
    assert limits.max_tokens == 60


def test_where_no_prompt_can_be_cut_fewer_sequences_run() -> None:
    limits = MemoryLimits(CONFIG)
    assert limits.shrink(make_plan(50))
    assert (limits.max_seqs, limits.max_tokens) == (25, 512)
    assert limits.shrink(make_plan(10, 16))
    assert limits.max_seqs == 5
    assert limits.shrink(make_plan(1, 1))
    assert limits.max_seqs == 1


def test_the_smallest_step_is_tried_three_times() -> None:
    limits = MemoryLimits(CONFIG)
    smallest = make_plan(1)
    assert [limits.shrink(smallest) for _ in range(4)] == [True, True, False, True]
    limits.record_fit()
    assert [limits.shrink(make_plan(0, 16)) for _ in range(3)] == [True, True, False]


def test_good_steps_raise_both_limits_by_a_sixteenth_up_to_what_is_configured() -> None:
    limits = MemoryLimits(CONFIG)
    limits.shrink(make_plan(0, 512))
    limits.shrink(make_plan(10))
    for _ in range(GOOD_STEPS_PER_RAISE - 1):
        limits.record_fit()
    assert (limits.max_tokens, limits.max_seqs) == (256, 5)
    limits.record_fit()
    assert (limits.max_tokens, limits.max_seqs) == (288, 9)
    for _ in range(20 * GOOD_STEPS_PER_RAISE):
        limits.record_fit()
    assert (limits.max_tokens, limits.max_seqs) == (512, 64)


def test_a_step_that_does_not_fit_starts_the_count_anew() -> None:
    limits = MemoryLimits(CONFIG)
    limits.shrink(make_plan(0, 512))
    for _ in range(GOOD_STEPS_PER_RAISE - 1):
        limits.record_fit()
    limits.shrink(make_plan(0, 256))
    limits.record_fit()
    assert limits.max_tokens == 128
