"""A scheduler whose steps are limited by their measured time."""

from dataclasses import dataclass, field

import pytest

from engine.config import EngineConfig
from engine.sequence import Sequence
from engine.step import ScheduledSequence, StepPlan
from engine.step_time import measure_work
from tests.unit.engine.fakes import BLOCK_SIZE
from tests.unit.engine.scheduler_harness import Harness, answer, prompt

BASE_S, PER_PREFILL_S, PER_DECODE_S, PER_CONTEXT_S = 0.008, 0.00025, 0.0001, 1e-5


def plan_time_s(plan: StepPlan) -> float:
    work = measure_work(plan.scheduled)
    return (
        BASE_S
        + PER_PREFILL_S * work.num_prefill_tokens
        + PER_DECODE_S * work.num_decodes
        + PER_CONTEXT_S * work.num_context_tokens
    )


@dataclass
class Timed:
    """Every step takes the time of its work, and the limits learn it."""

    target_s: float | None = None
    num_blocks: int = 1024
    windows: tuple[int | None, ...] = (None,)
    harness: Harness = field(init=False)
    now_s: float = 0.0

    def __post_init__(self) -> None:
        config = EngineConfig(
            block_size_tokens=BLOCK_SIZE,
            max_num_seqs=32,
            max_num_batched_tokens=256,
            min_prefill_chunk_tokens=4,
            prefix_caching=False,
            tpot_target_s=self.target_s,
            kv_admission="optimistic",
        )
        self.harness = Harness(config, self.num_blocks, self.windows)

    def step(self) -> StepPlan:
        plan = self.harness.scheduler.plan()
        assert plan is not None
        self.harness.scheduler.commit(plan, answer(plan))
        started_s, self.now_s = self.now_s, self.now_s + plan_time_s(plan)
        self.harness.scheduler.limits.record_time(plan, started_s=started_s, ended_s=self.now_s)
        return plan

    def learn(self) -> None:
        """From steps of many sizes."""
        for step in range(100):
            num_decodes, num_prompt = 1 + step * 7 % 30, (step % 2) * (1 + step * 31 % 200)
            decodes = [
                ScheduledSequence(i, 20 + step * 13 % 90, (), True) for i in range(num_decodes)
            ]
            chunk = ScheduledSequence(99, 0, (7,) * num_prompt, False)
            plan = StepPlan(step, (), (), (), (), (*decodes, chunk))
            time_s = plan_time_s(plan)
            self.harness.scheduler.limits.record_time(
                plan, started_s=self.now_s, ended_s=self.now_s + time_s
            )
            self.now_s += time_s

    def decode(self, num_seqs: int, prompt_len: int = 20) -> list[Sequence]:
        """So many that decode."""
        sequences = [
            self.harness.add(f"d{i}", prompt(i, prompt_len), max_tokens=2000)
            for i in range(num_seqs)
        ]
        for _ in range(200):
            if all(sequence.is_last_on_device for sequence in sequences):
                break
            self.step()
        return sequences


def test_a_long_prompt_makes_steps_at_most_twice_as_long_while_others_decode() -> None:
    timed = Timed()
    timed.learn()
    timed.decode(16)
    long = timed.harness.add("long", prompt(99, 2000), max_tokens=2)
    num_steps = 0
    while not long.is_last_on_device:
        plan = timed.step()
        alone_s = (
            plan_time_s(plan) - PER_PREFILL_S * measure_work(plan.scheduled).num_prefill_tokens
        )
        assert plan_time_s(plan) <= 2.05 * alone_s
        num_steps += 1
    assert num_steps < 2000 / 4 / 4, "prefill starves"


def test_a_long_prompt_has_the_whole_budget_when_nobody_decodes() -> None:
    timed = Timed()
    timed.learn()
    timed.harness.add("long", prompt(99, 2000), max_tokens=2)
    assert [timed.step().num_tokens for _ in range(5)] == [256] * 5


def test_many_prompts_that_wait_have_the_whole_budget() -> None:
    timed = Timed()
    timed.learn()
    timed.decode(4)
    for index in range(25):
        timed.harness.add(f"w{index}", prompt(index, 100), max_tokens=2)
    assert timed.step().num_tokens == 256


def test_with_a_target_no_step_beside_decodes_is_longer_whatever_waits() -> None:
    timed = Timed(target_s=0.025)
    timed.learn()
    for index in range(60):
        timed.harness.add(f"r{index}", prompt(index, 20 + 41 * index % 300), max_tokens=40)
    over = 0
    while timed.harness.scheduler.num_waiting or timed.harness.scheduler.num_running:
        plan = timed.step()
        work = measure_work(plan.scheduled)
        over += work.num_decodes > 0 and plan_time_s(plan) > 0.025
    assert over == 0
    assert timed.harness.scheduler.limit_reason == "tpot_target"


def test_contexts_too_long_for_the_target_wait_and_short_ones_behind_them_too() -> None:
    timed = Timed(target_s=0.020)
    timed.learn()
    timed.decode(6, prompt_len=60)
    limits = timed.harness.scheduler.limits
    assert limits.max_context_tokens is not None
    long = timed.harness.add("long", prompt(70, limits.max_context_tokens), max_tokens=4)
    short = timed.harness.add("short", prompt(71, 8), max_tokens=4)
    timed.step()
    assert long.slot is None
    assert short.slot is None
    assert timed.harness.scheduler.limit_reason == "length"


def test_a_context_over_the_limit_runs_alone() -> None:
    timed = Timed(target_s=0.020)
    timed.learn()
    most = timed.harness.scheduler.limits.max_context_tokens
    assert most is not None
    long = timed.harness.add("long", prompt(70, most + 100), max_tokens=2)
    timed.step()
    assert long.slot is not None


@pytest.mark.parametrize("target_s", [0.0001, 0.009])
def test_a_target_out_of_reach_still_lets_everybody_finish(target_s: float) -> None:
    timed = Timed(target_s=target_s)
    timed.learn()
    sequences = [
        timed.harness.add(f"r{index}", prompt(index, 30), max_tokens=5) for index in range(8)
    ]
    for _ in range(400):
        if timed.harness.scheduler.num_running or timed.harness.scheduler.num_waiting:
            timed.step()
    assert all(sequence.finish_reason is not None for sequence in sequences)


def test_behind_a_window_a_prompt_has_room_for_the_chunks_of_steps_without_decodes() -> None:
    timed = Timed(target_s=0.012, num_blocks=30, windows=(9,))
    timed.learn()
    limits = timed.harness.scheduler.limits
    assert limits.max_tokens < 30
    assert limits.max_tokens_of_memory == 256
    # Nobody decodes in the first step: all of the second prompt would be computed in it.
    first = timed.harness.add("first", prompt(1, 4), max_tokens=12)
    second = timed.harness.add("second", prompt(2, 200), max_tokens=2)
    plan = timed.step()
    assert [entry.num_tokens for entry in plan.scheduled] == [4]
    while second.finish_reason is None:
        timed.step()
    assert first.num_generated_tokens == 12
    assert timed.harness.scheduler.totals.num_preemptions == 0
