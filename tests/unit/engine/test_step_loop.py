import gc
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import pytest

from cache_tiers.block_image import ImageLayout
from cache_tiers.keys import BlockKey, block_keys
from cache_tiers.rung import Rung
from engine.config import EngineConfig, PacedConfig
from engine.engine import Engine
from engine.errors import EngineDeadError
from engine.garbage import YOUNG_OBJECTS, GarbageCollector
from engine.kv_geometry import KvGeometry, KvGroup
from engine.messages import (
    Abort,
    EngineRequest,
    FinishReason,
    GatewayMessage,
    SamplingParams,
    StepFrame,
    Submit,
    TokenDelta,
)
from engine.paced_runner import PacedRunner
from engine.profile import ProfileOrder
from engine.rank_messages import (
    FromGateway,
    GatewayGone,
    HandOver,
    RankCommand,
    RankEvent,
    Record,
    RungChange,
    Sleep,
    Stay,
    StepReport,
    Wake,
)
from engine.sleeper import Sleeper
from engine.step import ModelRunner, SampledToken, StepPlan, StepResult
from engine.step_loop import IDLE_POLL_S, MAX_FAILED_STEPS, StepLoop
from wire.errors import ConnectionClosed
from wire.pipe import SyncPipe

NUM_BLOCKS = 64
CONFIG = EngineConfig(runner="paced", max_num_seqs=8)


@dataclass
class Breakable:
    """A runner that fails as long as a test says so."""

    inner: ModelRunner
    is_broken: bool = False

    def execute(self, plan: StepPlan) -> StepResult:
        if self.is_broken:
            raise RuntimeError("the device is gone")
        return self.inner.execute(plan)

    def take_sampled(self, sampled: Sequence[SampledToken]) -> None:
        self.inner.take_sampled(sampled)

    def attach_arena(self, arena: memoryview, layout: ImageLayout, socket_path: str) -> None:
        self.inner.attach_arena(arena, layout, socket_path)

    def detach_arena(self) -> None:
        self.inner.detach_arena()

    def close(self) -> None:
        self.inner.close()


class AuditedEngine(Engine):
    """An engine whose audit takes as many slices as a test says."""

    num_audit_slices = 0

    def audit_slice(self) -> bool:
        self.num_audit_slices = max(0, self.num_audit_slices - 1)
        return self.num_audit_slices > 0


@dataclass
class Bench:
    """A step loop, and the front's end of its pipe."""

    loop: StepLoop
    engine: AuditedEngine
    runner: Breakable
    front: SyncPipe
    loop_pipe: SyncPipe

    def send(self, command: RankCommand) -> None:
        self.front.send(msgspec.msgpack.encode(command))

    def say(self, source: int, message: GatewayMessage) -> None:
        self.send(FromGateway(source, msgspec.msgpack.encode(message)))

    def turn(self) -> StepReport:
        self.loop.turn()
        return self.last_report()

    def last_report(self) -> StepReport:
        [frame] = self.front.poll(1)
        report = msgspec.msgpack.decode(frame, type=RankEvent)
        assert isinstance(report, StepReport)
        return report


def deltas_of(report: StepReport) -> dict[int, list[TokenDelta]]:
    return {
        frame.source: msgspec.msgpack.decode(frame.payload, type=StepFrame).deltas
        for frame in report.frames
    }


def submit(request_id: str, max_tokens: int = 100) -> Submit:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0)
    return Submit(EngineRequest(request_id, [1, 2, 3], b"", [], sampling, timeout_s=60))


@pytest.fixture
def bench() -> Iterator[Bench]:
    paced = PacedRunner(
        PacedConfig(),
        num_blocks=NUM_BLOCKS,
        block_size_tokens=CONFIG.block_size_tokens,
        vocab_size=100,
        eos_token_ids=[0],
        sleep=lambda _: None,
    )
    runner = Breakable(paced)
    geometry = KvGeometry((KvGroup((0,)),), 1, 1, CONFIG.block_size_tokens, 2)
    engine = AuditedEngine(
        CONFIG,
        geometry=geometry,
        num_blocks=NUM_BLOCKS,
        max_model_len=512,
        vocab_size=100,
        runner=runner,
    )
    theirs, ours = socket.socketpair()
    pipe, front = SyncPipe(theirs), SyncPipe(ours)
    sleeper = Sleeper(engine, paced)
    yield Bench(StepLoop(engine, pipe, sleeper=sleeper), engine, runner, front, pipe)
    engine.check_integrity()
    front.close()
    pipe.close()


def test_a_step_gives_each_gateway_one_frame_with_its_own_deltas(bench: Bench) -> None:
    for source, request_id in ((1, "a"), (2, "b"), (1, "c")):
        bench.say(source, submit(request_id))
    report = bench.turn()
    requests = {
        source: [delta.request_id for delta in deltas]
        for source, deltas in deltas_of(report).items()
    }
    assert requests == {1: ["a", "c"], 2: ["b"]}
    assert report.num_submits_taken == 3
    assert bench.turn().num_submits_taken == 0


def test_counts_what_finished_for_the_credits(bench: Bench) -> None:
    bench.say(1, submit("short", max_tokens=1))
    bench.say(1, submit("long", max_tokens=3))
    assert [(f.source, f.num_finished) for f in bench.turn().frames] == [(1, 1)]
    assert [(f.source, f.num_finished) for f in bench.turn().frames] == [(1, 0)]
    assert [(f.source, f.num_finished) for f in bench.turn().frames] == [(1, 1)]


def submit_samples(request_id: str, num_samples: int, prompt: list[int]) -> Submit:
    sampling = SamplingParams(max_tokens=2, temperature=0)
    return Submit(EngineRequest(request_id, prompt, b"", [], sampling, 60, num_samples))


def test_every_sample_counts_and_the_request_is_known_until_its_last_one_ended(
    bench: Bench,
) -> None:
    bench.say(1, submit_samples("a", 3, [1, 2]))
    assert bench.turn().frames[0].num_finished == 0
    bench.say(1, Abort("a", index=1))
    bench.say(2, submit_samples("a", 2, [1, 2]))

    report = bench.turn()

    assert {f.source: f.num_finished for f in report.frames} == {1: 3, 2: 2}
    reasons = [(d.index, d.finish_reason) for d in deltas_of(report)[1]]
    assert reasons == [
        (1, FinishReason.ABORT),
        (0, FinishReason.LENGTH),
        (2, FinishReason.LENGTH),
    ]
    [refusal] = deltas_of(report)[2]
    assert refusal.is_refused
    bench.say(2, submit_samples("a", 1, [1, 2]))
    assert deltas_of(bench.turn())[2][0].finish_reason is None


@pytest.mark.parametrize(("num_samples", "num_finished"), [(4, 4), (0, 1), (-7, 1), (10**9, 128)])
def test_a_refused_request_frees_all_its_places_with_one_delta(
    bench: Bench, num_samples: int, num_finished: int
) -> None:
    bench.say(1, submit_samples("a", num_samples, []))
    report = bench.turn()
    [delta] = deltas_of(report)[1]
    assert (delta.finish_reason, delta.is_refused) == (FinishReason.ERROR, True)
    assert report.frames[0].num_finished == num_finished
    assert not bench.engine.has_work


def test_a_request_of_another_gateway_can_be_neither_aborted_nor_taken_over(bench: Bench) -> None:
    bench.say(1, submit("mine"))
    bench.turn()
    bench.say(2, Abort("mine"))
    bench.say(2, submit("mine"))
    report = bench.turn()
    deltas = deltas_of(report)
    assert deltas[1][0].finish_reason is None
    assert deltas[2][0].finish_reason is FinishReason.ERROR
    assert {f.source: f.num_finished for f in report.frames} == {1: 0, 2: 1}
    assert report.num_submits_taken == 1
    bench.say(1, Abort("mine"))
    assert deltas_of(bench.turn())[1][-1].finish_reason is FinishReason.ABORT


def test_a_gateway_that_went_takes_its_requests_along_within_one_step(bench: Bench) -> None:
    for source, request_id in ((1, "a"), (1, "b"), (2, "c")):
        bench.say(source, submit(request_id))
    bench.turn()
    bench.send(GatewayGone(1))
    report = bench.turn()
    assert {f.source: f.num_finished for f in report.frames} == {1: 2, 2: 0}
    assert report.load.num_running == 1


def test_a_step_that_fails_now_and_then_ends_its_requests_only(bench: Bench) -> None:
    for number in range(2 * MAX_FAILED_STEPS):
        bench.runner.is_broken = number % MAX_FAILED_STEPS > 0
        bench.say(1, submit(f"r{number}", max_tokens=1))
        reason = deltas_of(bench.turn())[1][0].finish_reason
        assert reason is (FinishReason.ERROR if bench.runner.is_broken else FinishReason.LENGTH)


def test_a_loop_whose_every_step_fails_ends_after_its_last_report(bench: Bench) -> None:
    bench.runner.is_broken = True
    for number in range(MAX_FAILED_STEPS - 1):
        bench.say(1, submit(f"r{number}"))
        bench.turn()
    bench.say(1, submit("last"))
    with pytest.raises(EngineDeadError, match="steps failed one after the other"):
        bench.loop.turn()
    assert bench.last_report().frames[0].num_finished == 1


def test_what_a_step_was_goes_up_with_its_report(bench: Bench) -> None:
    bench.say(1, submit("a", max_tokens=2))
    first, second = bench.turn(), bench.turn()
    assert first.record is not None
    assert second.record is not None
    assert (first.record.num_prefill_tokens, first.record.num_decodes) == (3, 0)
    assert (second.record.num_prefill_tokens, second.record.num_decodes) == (0, 1)
    assert [first.stats.num_steps, second.stats.num_steps] == [1, 2]
    kinds = [(note.request_id, note.event.kind) for note in first.notes + second.notes]
    assert {("a", "admitted"), ("a", "first_token"), ("a", "last_token")} <= set(kinds)


def test_an_idle_loop_finishes_an_audit_before_it_waits(bench: Bench) -> None:
    bench.send(GatewayGone(1))  # wakes the loop, and leaves it without work
    bench.engine.num_audit_slices = 3
    started_s = time.monotonic()
    for _ in range(3):
        bench.loop.turn()
    assert bench.engine.num_audit_slices == 0
    assert time.monotonic() - started_s < IDLE_POLL_S / 2


def test_a_closed_pipe_ends_the_loop(bench: Bench) -> None:
    bench.front.close()
    with pytest.raises(ConnectionClosed):
        bench.loop.run()


def test_reports_the_pauses_between_steps(bench: Bench) -> None:
    garbage = GarbageCollector()
    loop = StepLoop(bench.engine, bench.loop_pipe, garbage)
    garbage.take_over()
    try:
        bench.say(1, submit("a"))
        loop.turn()
        assert bench.last_report().stats.num_gc_pauses == 0
        kept = [[] for _ in range(YOUNG_OBJECTS)]  # type: ignore[var-annotated]
        loop.turn()
        assert bench.last_report().stats.num_gc_pauses == 0, "it comes after the step's report"
        loop.turn()
        stats = bench.last_report().stats
        assert len(kept) == YOUNG_OBJECTS
    finally:
        gc.unfreeze()
        gc.enable()
    assert stats.num_gc_pauses == 1
    assert 0 < stats.gc_pause_s == stats.longest_gc_pause_s


def turn_until_profile(bench: Bench) -> StepReport:
    """It is made beside the loop, in a thread."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        bench.loop.turn()
        for frame in bench.front.poll(0.001):
            report = msgspec.msgpack.decode(frame, type=RankEvent)
            if isinstance(report, StepReport) and report.profile is not None:
                return report
    raise AssertionError("no profile came")


def test_steps_are_recorded_when_the_front_asks(bench: Bench) -> None:
    bench.say(1, submit("r", max_tokens=400))
    bench.turn()
    for num_steps in (3, 2):
        bench.send(Record(ProfileOrder(num_steps, 60.0)))
        profile = turn_until_profile(bench).profile
        assert profile is not None
        assert profile.summary.num_steps == num_steps
        assert profile.summary.num_decodes == 1.0


def test_an_idle_loop_tells_that_no_steps_came(bench: Bench) -> None:
    bench.send(Record(ProfileOrder(3, 0.001)))
    bench.loop.turn()
    profile = turn_until_profile(bench).profile
    assert profile is not None
    assert profile.summary.num_steps == 0


def test_a_loop_that_sleeps_says_what_is_lost_and_moves_who_comes(bench: Bench) -> None:
    prompt = [1 + place % 90 for place in range(8 * CONFIG.block_size_tokens + 1)]
    keys = list(block_keys(BlockKey(b"r" * 16), prompt, CONFIG.block_size_tokens))
    sampling = SamplingParams(max_tokens=1, temperature=0)
    bench.say(1, Submit(EngineRequest("a", prompt, b"r" * 16, [*keys], sampling, timeout_s=60)))
    report = bench.turn()
    while not report.frames:
        report = bench.turn()
    bench.send(HandOver(only_waiting=True))
    bench.send(Sleep())

    report = bench.turn()

    assert report.rung_change == RungChange(Rung.PARKED)
    assert report.events is not None
    assert report.events.evicted == [keys[7]]
    assert (report.load.num_free_blocks, report.load.num_blocks) == (0, NUM_BLOCKS)
    bench.say(2, submit("late"))
    report = bench.turn()
    assert deltas_of(report)[2][0].finish_reason is FinishReason.MOVED
    assert (report.num_submits_taken, report.frames[0].num_finished) == (1, 1)
    bench.send(Wake())
    report = bench.turn()
    assert report.rung_change == RungChange(Rung.SERVING)
    assert report.load.num_free_blocks == NUM_BLOCKS
    bench.say(2, submit("next", max_tokens=1))
    assert deltas_of(bench.turn())[2][0].finish_reason is FinishReason.LENGTH


def test_a_loop_that_leaves_moves_its_requests_within_one_step(bench: Bench) -> None:
    bench.say(1, submit("a"))
    bench.turn()
    bench.send(HandOver(only_waiting=False))
    report = bench.turn()
    [delta] = deltas_of(report)[1]
    assert delta.finish_reason is FinishReason.MOVED
    assert delta.usage is not None
    assert delta.usage.completion_tokens == 1
    bench.say(1, submit("crossing"))
    bench.send(Stay())
    bench.say(1, submit("b", max_tokens=1))
    reasons = {delta.request_id: delta.finish_reason for delta in deltas_of(bench.turn())[1]}
    assert reasons == {"crossing": FinishReason.MOVED, "b": FinishReason.LENGTH}
