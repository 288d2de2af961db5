"""A failure at any point ends the requests that are here with an error, and nothing else.

Blocks and slots are free afterwards, no block of the failed step is found in the prefix cache, and
later requests get the answers they get alone.
"""

import logging
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from types import FrameType
from typing import Any, ClassVar, NamedTuple

import pytest

from cache_tiers.block_image import ImageLayout
from engine.engine import Engine
from engine.messages import KEY_STRIDE, EngineRequest, FinishReason
from engine.step import ModelRunner, SampledToken, StepPlan, StepResult
from tests.unit.engine.fakes import (
    Answer,
    FakeClock,
    RecordingRunner,
    answers_alone,
    collect,
    make_config,
    make_engine,
    make_request,
    make_runner,
    run_to_end,
)

NUM_BLOCKS = 16
WINDOWS = (None, 6)
SHARED = [10, 11, 12, 13, 14, 15, 16, 17]
PROMPTS = {
    "seed": SHARED,
    "copies": SHARED,
    "samples": [18, 19, 18, 19, 18],
    "grows": [*SHARED, 20],
    "aborted": [21, 22, 23],
    "other": [24, 25, 26, 27, 28, 29],
    "late": [30, 31, 32, 33, 34],
}


class Point(NamedTuple):
    """The ``nth`` time that a line is about to run."""

    file: str
    line: int
    nth: int


class InjectedError(Exception):
    pass


@dataclass
class Tracer:
    """Counts the lines of planning, committing and aborting; raises at ``target``."""

    target: Point | None = None
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)
    has_raised: bool = False

    files: ClassVar[tuple[str, ...]] = (
        "admission_control.py",
        "scheduler.py",
        "places.py",
        "prompt_planner.py",
        "plan_draft.py",
        "result_match.py",
        "block_manager.py",
        "block_pool.py",
        "prefix_cache.py",
        "running_set.py",
        "sequence.py",
        "load_limits.py",
        "memory_limits.py",
        "step_limits.py",
        "waiting_queue.py",
    )
    entries: ClassVar[frozenset[str]] = frozenset({"plan", "commit", "finish", "make_delta"})
    """What ``step`` and ``abort`` call; reporting the load between steps is left out."""

    def __call__(self, frame: FrameType, kind: str, argument: Any) -> "Tracer | None":
        file = frame.f_code.co_filename.rpartition("/")[2]
        if self.has_raised or file not in self.files or not self.can_hit(frame, file):
            return None
        if not self.is_inside_an_entry(frame):
            return None
        if kind == "line":
            self.counts[file, frame.f_lineno] += 1
            if self.target == (file, frame.f_lineno, self.counts[file, frame.f_lineno]):
                self.has_raised = True
                raise InjectedError(str(self.target))
        return self

    def can_hit(self, frame: FrameType, file: str) -> bool:
        """Whether the target is in this function: all others run at full speed."""
        if self.target is None:
            return True
        lines = [line for _, _, line in frame.f_code.co_lines() if line is not None]
        return file == self.target.file and min(lines) <= self.target.line <= max(lines)

    def is_inside_an_entry(self, frame: FrameType | None) -> bool:
        while frame is not None and frame.f_code.co_filename.endswith(self.files):
            if frame.f_code.co_name in self.entries:
                return True
            frame = frame.f_back
        return False

    @contextmanager
    def active(self) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(None if self.has_raised else self)
        try:
            yield
        finally:
            sys.settrace(before)


def make_small_engine(runner: ModelRunner, clock: FakeClock | None = None) -> Engine:
    config = make_config(max_num_seqs=5, max_num_batched_tokens=8)
    return make_engine(config, num_blocks=NUM_BLOCKS, windows=WINDOWS, runner=runner, clock=clock)


def request(name: str, suffix: str = "") -> EngineRequest:
    return make_request(
        name + suffix,
        PROMPTS[name],
        max_tokens=16,
        timeout_s=5.0 if name == "late" else 60.0,
        num_samples=3 if name == "samples" else 1,
        num_logprobs=1 if name == "samples" else None,
        num_prompt_logprobs=1 if name == "other" else None,
    )


def play(engine: Engine, clock: FakeClock, tracer: Tracer | None = None) -> dict[str, Answer]:
    """Prefix hits, copy-on-write, eviction, preemption, an abort, a timeout: 40 steps or so."""
    answers: dict[str, Answer] = {}

    def step() -> None:
        with tracer.active() if tracer else nullcontext():
            output = engine.step()
        collect(answers, output.deltas)
        engine.check_integrity()

    engine.add(request("seed"))
    step()
    step()
    for name in list(PROMPTS)[1:]:
        engine.add(request(name))
    for _ in range(4):
        step()
    with tracer.active() if tracer else nullcontext():
        engine.abort("aborted")
    engine.check_integrity()
    for _ in range(3):
        step()
    clock.now_s += 10.0
    while engine.has_work:
        step()
    return answers


def check_recovery(engine: Engine, answers: dict[str, Answer]) -> None:
    """Every request ended once, all is free, and the same prompts get their right answers."""
    assert answers.keys() == {*PROMPTS, "samples#1", "samples#2"}
    for name, answer in answers.items():
        assert answer.finish_reason is not None
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(answer.token_ids)
        right = right_answers(name.partition("#")[0])[name]
        assert answer.token_ids == right.token_ids[: len(answer.token_ids)]
        assert answer.logprobs == right.logprobs[: len(answer.logprobs)]
        assert (answer.error is None) == (answer.finish_reason is not FinishReason.ERROR)
    load = engine.step().load
    assert (load.num_running, load.num_waiting) == (0, 0)
    assert load.num_free_blocks == NUM_BLOCKS
    for name in PROMPTS:
        engine.add(request(name, suffix="-again"))
    again = run_to_end(engine)
    for name in PROMPTS:
        assert again[f"{name}-again"].token_ids == right_answers(name)[name].token_ids
    assert engine.step().load.num_free_blocks == NUM_BLOCKS


@cache
def right_answers(name: str) -> dict[str, Answer]:
    return answers_alone(request(name))


def test_without_a_failure_the_scenario_visits_what_can_fail() -> None:
    clock = FakeClock()
    runner = RecordingRunner(make_runner(NUM_BLOCKS, WINDOWS))
    engine = make_small_engine(runner, clock)

    answers = play(engine, clock)

    reasons = {name: answer.finish_reason for name, answer in answers.items()}
    assert reasons.pop("aborted") is FinishReason.ABORT
    assert reasons.pop("late") is FinishReason.TIMEOUT
    assert set(reasons.values()) == {FinishReason.LENGTH}
    assert engine.step().load.num_preemptions > 0
    assert any(plan.block_copies for plan in runner.plans)
    assert any(plan.freed_block_ids for plan in runner.plans)
    assert any(len(e.sampling_slots) > 1 for plan in runner.plans for e in plan.scheduled)
    check_recovery(engine, answers)


@pytest.fixture
def quiet_log() -> Iterator[None]:
    """Hundreds of tracebacks on purpose would slow the test and bury a real one."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("quiet_log")
def test_a_failure_anywhere_in_planning_committing_or_aborting_leaves_all_free() -> None:
    clock = FakeClock()
    census = Tracer()
    play(make_small_engine(make_runner(NUM_BLOCKS, WINDOWS), clock), clock, census)
    places = sorted(census.counts.items())[::4]  # many statements have several lines
    assert len(places) > 100

    for place, count in places:
        # Halfway, when most is going on.
        point = Point(*place, nth=(count + 1) // 2)
        clock, tracer = FakeClock(), Tracer(point)
        engine = make_small_engine(make_runner(NUM_BLOCKS, WINDOWS), clock)
        answers = play(engine, clock, tracer)
        assert tracer.has_raised, point
        assert any(a.finish_reason is FinishReason.ERROR for a in answers.values()), point
        check_recovery(engine, answers)


def fail_before(runner: ModelRunner, plan: StepPlan) -> StepResult:
    raise InjectedError("before the step")


def fail_after(runner: ModelRunner, plan: StepPlan) -> StepResult:
    runner.execute(plan)
    raise InjectedError("after the step")


def fail_halfway(runner: ModelRunner, plan: StepPlan) -> StepResult:
    half = len(plan.scheduled) // 2
    runner.execute(
        StepPlan(
            plan.step_id,
            plan.released_slots,
            plan.freed_block_ids,
            plan.block_copies,
            plan.admissions,
            plan.scheduled[:half],
        )
    )
    raise InjectedError("halfway")


def answer_another_step(runner: ModelRunner, plan: StepPlan) -> StepResult:
    return StepResult(plan.step_id - 1, runner.execute(plan).sampled)


def answer_another_slot(runner: ModelRunner, plan: StepPlan) -> StepResult:
    sampled = runner.execute(plan).sampled
    return StepResult(plan.step_id, (*sampled, SampledToken(2, 5)))


@dataclass
class FailingRunner:
    """Executes ``num_good_steps``, then fails once."""

    inner: ModelRunner
    num_good_steps: int
    fail: Callable[[ModelRunner, StepPlan], StepResult]
    num_steps: int = 0

    def execute(self, plan: StepPlan) -> StepResult:
        self.num_steps += 1
        if self.num_steps == self.num_good_steps + 1:
            return self.fail(self.inner, plan)
        return self.inner.execute(plan)

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        self.inner.take_sampled(sampled)

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        self.inner.attach_arena(arena, layout, socket_path)

    def detach_arena(self) -> None:
        self.inner.detach_arena()

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize(
    "fail", [fail_before, fail_halfway, fail_after, answer_another_step, answer_another_slot]
)
@pytest.mark.parametrize("num_good_steps", range(0, 24, 2))
def test_a_failing_runner_at_any_step_leaves_all_free(
    num_good_steps: int, fail: Callable[[ModelRunner, StepPlan], StepResult]
) -> None:
    clock = FakeClock()
    runner = FailingRunner(make_runner(NUM_BLOCKS, WINDOWS), num_good_steps, fail)
    engine = make_small_engine(runner, clock)

    answers = play(engine, clock)

    assert any(answer.finish_reason is FinishReason.ERROR for answer in answers.values())
    check_recovery(engine, answers)


def test_a_failed_step_caches_nothing_and_older_steps_stay_cached() -> None:
    runner = FailingRunner(make_runner(NUM_BLOCKS, WINDOWS), num_good_steps=1, fail=fail_after)
    engine = make_small_engine(runner)
    engine.add(make_request("kept", PROMPTS["other"], max_tokens=1))
    run_to_end(engine)
    engine.add(make_request("failed", SHARED, max_tokens=1))
    run_to_end(engine)

    engine.add(make_request("kept again", PROMPTS["other"], max_tokens=1))
    engine.add(make_request("failed again", SHARED, max_tokens=1))

    usages = {name: answer.usage for name, answer in run_to_end(engine).items()}
    assert usages["kept again"] is not None
    assert usages["failed again"] is not None
    assert usages["kept again"].cached_tokens == 4
    assert usages["failed again"].cached_tokens == 0


@pytest.mark.parametrize("num_good_steps", range(9))
def test_routers_are_told_what_a_failure_leaves(num_good_steps: int) -> None:
    runner = FailingRunner(make_runner(28), num_good_steps, fail_after)
    engine = make_engine(make_config(max_num_batched_tokens=24), num_blocks=28, runner=runner)
    known: set[bytes] = set()
    for first in (3, 4, 5):  # two fit the pool
        engine.add(make_request(f"r{first}", [first, *range(10, 44)], 3))
        while engine.has_work:
            events = engine.step().events
            if events is not None:
                assert known.isdisjoint(events.stored)
                assert known.issuperset(events.evicted)
                known = known.union(events.stored).difference(events.evicted)
            content = engine._blocks._cache._content.values()
            assert known == {block.key for block in content if block.chain_len == KEY_STRIDE}
            assert known == engine._blocks.announced_keys


def test_the_client_reads_no_internals_and_the_log_names_the_requests(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = make_small_engine(FailingRunner(make_runner(NUM_BLOCKS, WINDOWS), 0, fail_before))
    engine.add(make_request("req-1", SHARED))
    engine.add(make_request("req-2", SHARED))

    answers = run_to_end(engine)

    for name in ("req-1", "req-2"):
        assert "can be sent again" in str(answers[name].error)
        assert "before the step" not in str(answers[name].error)
        assert name in caplog.text
    assert "InjectedError: before the step" in caplog.text


@dataclass
class NanRunner:
    """Has no valid logits for one slot in one step."""

    inner: ModelRunner
    bad_step: int
    bad_slot: int

    def execute(self, plan: StepPlan) -> StepResult:
        result = self.inner.execute(plan)
        if plan.step_id != self.bad_step:
            return result
        sampled = tuple(
            SampledToken(token.slot, -1) if token.slot == self.bad_slot else token
            for token in result.sampled
        )
        return StepResult(plan.step_id, sampled, result.prompt_logprobs)

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        self.inner.take_sampled(sampled)

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        self.inner.attach_arena(arena, layout, socket_path)

    def detach_arena(self) -> None:
        self.inner.detach_arena()

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("bad_step", [1, 2, 5])
def test_invalid_logits_of_one_row_end_one_request_and_the_step_counts(bad_step: int) -> None:
    engine = make_small_engine(NanRunner(make_runner(NUM_BLOCKS, WINDOWS), bad_step, bad_slot=1))
    engine.add(make_request("good", PROMPTS["aborted"], max_tokens=8))
    engine.add(make_request("bad", PROMPTS["late"], max_tokens=8, num_logprobs=1))

    answers = run_to_end(engine)

    bad, good = answers["bad"], answers["good"]
    assert bad.finish_reason is FinishReason.ERROR
    assert bad.error == "The model computed no valid logits for this request."
    assert len(bad.token_ids) == len(bad.logprobs) == bad_step - 1
    assert bad.usage is not None
    assert bad.usage.completion_tokens == bad_step - 1
    assert good.finish_reason is FinishReason.LENGTH
    alone = answers_alone(make_request("good", PROMPTS["aborted"], max_tokens=8))
    assert good.token_ids == alone["good"].token_ids
    assert engine.num_failed_steps == 0
    load = engine.step().load
    assert (load.num_free_blocks, load.num_generated_tokens) == (NUM_BLOCKS, 8 + bad_step - 1)
