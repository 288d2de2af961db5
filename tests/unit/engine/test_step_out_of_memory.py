"""A step without memory: no stream is lost, steps shrink, and only what fits nowhere ends."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cache_tiers.block_image import ImageLayout
from engine.errors import StepOutOfMemory
from engine.messages import FinishReason
from engine.step import ModelRunner, SampledToken, StepPlan, StepResult
from tests.unit.engine.fakes import (
    Answer,
    RecordingRunner,
    answers_alone,
    collect,
    make_config,
    make_engine,
    make_request,
    make_runner,
    run_to_end,
)


@dataclass
class ForgetfulRunner:
    """Has no memory in some steps, and has then done a part of what was planned."""

    inner: ModelRunner
    bad_steps: dict[int, float]
    """What share of the plan each of them carries out."""
    num_out_of_memory: int = 0
    released: list[tuple[int, ...]] = field(default_factory=list)
    """After each of them, the slots that the next plan releases."""
    is_told: bool = True

    def execute(self, plan: StepPlan) -> StepResult:
        if not self.is_told:
            self.released.append(plan.released_slots)
            self.is_told = True
        share = self.bad_steps.pop(plan.step_id, None)
        if share is None:
            return self.inner.execute(plan)
        if share > 0:
            num_done = len(plan.scheduled)
            if not plan.freed_block_ids:  # else the rest says who lets go of them
                num_done = round(share * num_done)
            self.inner.execute(
                StepPlan(
                    plan.step_id,
                    plan.released_slots,
                    plan.freed_block_ids,
                    plan.block_copies,
                    plan.admissions,
                    plan.scheduled[:num_done],
                )
            )
        self.num_out_of_memory += 1
        self.is_told = False
        raise StepOutOfMemory("none left")

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        self.inner.take_sampled(sampled)

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        self.inner.attach_arena(arena, layout, socket_path)

    def detach_arena(self) -> None:
        self.inner.detach_arena()

    def close(self) -> None:
        self.inner.close()


REQUESTS = [
    make_request("samples", [10, 11, 12, 13, 14], 12, num_samples=3, num_logprobs=1),
    make_request("long", list(range(10, 40)), 9, seed=4),
    make_request("prompt", list(range(10, 30)), 6, num_prompt_logprobs=1),
    make_request("short", [10, 11, 12, 13, 14, 15, 16, 17], 20, seed=5),
    make_request("cached", [10, 11, 12, 13, 14, 15, 16, 17], 5),
]
ALONE: dict[str, Answer] = {}
for _request in REQUESTS:
    ALONE |= answers_alone(_request)


@settings(max_examples=60, deadline=None)
@given(
    bad_steps=st.dictionaries(st.integers(1, 60), st.sampled_from([0.0, 0.5, 1.0]), max_size=12),
    windows=st.sampled_from([(None,), (None, 6)]),
    prefix_caching=st.booleans(),
    pauses=st.lists(st.integers(0, 4), min_size=len(REQUESTS), max_size=len(REQUESTS)),
)
def test_steps_without_memory_change_no_answer(
    bad_steps: dict[int, float],
    windows: tuple[int | None, ...],
    prefix_caching: bool,
    pauses: list[int],
) -> None:
    # Steps of the smallest size fail at most twice in a row, after which one of them is the last.
    bad_steps = {n: share for n, share in bad_steps.items() if n % 3}
    num_bad = len(bad_steps)
    runner = ForgetfulRunner(make_runner(40, windows), bad_steps)
    config = make_config(max_num_seqs=5, max_num_batched_tokens=24, prefix_caching=prefix_caching)
    engine = make_engine(config, num_blocks=40, windows=windows, runner=runner)
    answers: dict[str, Answer] = {}
    for request, num_steps in zip(REQUESTS, pauses, strict=True):
        engine.add(request)
        for _ in range(num_steps):
            collect(answers, engine.step().deltas)
            engine.check_integrity()
    run_to_end(engine, answers)

    for name, alone in ALONE.items():
        assert answers[name].token_ids == alone.token_ids
        assert answers[name].logprobs == alone.logprobs
        assert answers[name].prompt_logprobs == alone.prompt_logprobs
        assert answers[name].finish_reason is alone.finish_reason
    end = engine.step()
    assert end.load.num_free_blocks == 40
    assert end.stats.num_out_of_memory_steps == runner.num_out_of_memory
    assert end.stats.num_failed_steps == engine.num_failed_steps == 0
    assert all(slots == (0, 1, 2, 3, 4) for slots in runner.released)
    event(f"out of memory: {runner.num_out_of_memory} of {num_bad}")


@pytest.mark.parametrize("max_step_tokens", [4, 5, 9, 16])
def test_a_device_for_small_steps_serves_all_with_small_steps(max_step_tokens: int) -> None:
    runner = RecordingRunner(make_runner(64, max_step_tokens=max_step_tokens))
    engine = make_engine(runner=runner)
    for request in REQUESTS:
        engine.add(request)

    answers = run_to_end(engine)

    for name, alone in ALONE.items():
        assert answers[name].token_ids == alone.token_ids
    too_large = [plan for plan in runner.plans if plan.num_tokens > max_step_tokens]
    assert len(too_large) == engine.step().stats.num_out_of_memory_steps <= 8


def test_records_tell_of_the_step_that_did_not_fit_and_of_the_limits_in_force() -> None:
    engine = make_engine(runner=make_runner(64, max_step_tokens=20))
    engine.add(make_request("a", list(range(10, 42)), 2))

    records = []
    while engine.has_work:
        output = engine.step()
        assert output.record is not None
        records.append(output.record)

    assert [(r.outcome, r.num_prefill_tokens, r.max_tokens) for r in records] == [
        ("out_of_memory", 32, 16),
        ("ok", 16, 16),
        ("ok", 16, 16),
        ("ok", 0, 16),
    ]
    assert [r.num_preempted for r in records] == [1, 0, 0, 0]
    assert [r.num_running for r in records] == [0, 1, 1, 0]


def test_a_request_that_fits_nowhere_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(runner=make_runner(64, max_step_tokens=3))  # the smallest chunk has 4
    engine.add(make_request("small", [10, 11, 12], 4))
    engine.add(make_request("large", list(range(10, 20)), 4, num_samples=2))
    engine.add(make_request("also small", [13, 14, 15], 4))

    answers = run_to_end(engine)

    for name in ("large", "large#1"):
        assert answers[name].finish_reason is FinishReason.ERROR
        assert "too little memory for this request" in str(answers[name].error)
    assert "request large does not fit" in caplog.text
    for name in ("small", "also small"):
        assert answers[name].finish_reason is FinishReason.LENGTH
        assert len(answers[name].token_ids) == 4
    assert engine.num_failed_steps == 0
    assert engine.step().load.num_free_blocks == 64


def test_what_the_cache_had_stays_and_is_found_by_those_that_wait_again() -> None:
    runner = ForgetfulRunner(make_runner(64), {4: 1.0})
    engine = make_engine(runner=runner)
    engine.add(make_request("a", list(range(10, 21)), 12))
    cached = []
    while engine.has_work:
        cached += [n.event.value for n in engine.step().notes if n.event.kind == "admitted"]

    # 11 prompt tokens and 3 generated ones; the last was never computed.
    assert cached == [0, 12]


def test_a_warm_up_leaves_behind_how_large_steps_may_be() -> None:
    engine = make_engine(runner=make_runner(64, max_step_tokens=20))
    engine.add(make_request("warm-up", list(range(10, 42)), 1))
    run_to_end(engine)
    engine.forget()
    engine.add(make_request("a", list(range(10, 42)), 1))

    record = engine.step().record

    assert record is not None
    assert (record.outcome, record.num_prefill_tokens) == ("ok", 16)
