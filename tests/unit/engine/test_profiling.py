"""Recording steps: what is counted, how it adds up, and where it ends."""

import gzip
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from engine.observations import StepRecord
from engine.profile import (
    MAX_STEPS,
    MAX_TIMEOUT_S,
    OPERATORS,
    Profile,
    ProfileOrder,
    ProfileSummary,
    render_profile,
)
from engine.profile_run import MAX_TRACED_STEPS
from engine.profile_summary import PHASES, summarize
from engine.profile_trace import PROCESS_ID
from engine.profiling import StepProfiler
from engine.step_probe import StepProbe
from engine.step_recording import RecordedPart, RecordedStep, StepRecording
from engine.torch_trace import TraceEvent, read_torch_trace
from engine.trace_times import device_times, host_times

MS = 1_000_000
RECORD = StepRecord(0, 0.0, 0.0, 5, 3, 0, 0, 0, 0, 0, 0, 0, 0)


def shares(summary: ProfileSummary) -> dict[str, float]:
    return {line.name: round(line.ms, 6) for line in summary.operators}


def slice_(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1) -> TraceEvent:
    return TraceEvent(name, "X", cat, pid=1, tid=tid, ts=ts, dur=dur)


def part(name: str, ts: float, dur: float) -> TraceEvent:
    return slice_(f"headwater {name}", ts, dur, "user_annotation")


def compiled_step() -> RecordedStep:
    """10 ms: 6 in the model (1 of them in a collective), 3 in the outputs."""
    return RecordedStep(
        started_ns=0,
        duration_ns=10 * MS,
        parts=[
            RecordedPart("collectives", 2 * MS, 1 * MS),
            RecordedPart("model", 1 * MS, 6 * MS, inner_ns=1 * MS),
            RecordedPart("outputs", 7 * MS, 3 * MS),
        ],
        phases_ns={"norm": MS // 2, "qkv": MS, "attention": MS, "mlp": 2 * MS, "head": 2 * MS},
        num_decodes=4,
    )


def test_phases_and_parts_of_the_compiled_step_add_up_to_the_step() -> None:
    summary = summarize([compiled_step(), compiled_step()], num_asked=2)
    assert shares(summary) == {
        "attention": 1.0,
        "matmul": 5.0,
        "collectives": 1.0,
        "sampling": 1.0,
        "norm and rotation": 0.5,
        "other": 0.5,
        "host": 1.0,
    }
    assert sum(line.share for line in summary.operators) == pytest.approx(1)
    assert (summary.source, summary.step_ms, summary.num_decodes) == ("compiled step", 10.0, 4.0)
    assert summary.notes == []


def test_operators_of_torch_count_for_themselves_and_for_the_part_they_lie_in() -> None:
    events = [
        part("step", 0, 1000),
        slice_("aten::to", 10, 20),  # of the host: outside of all parts
        part("model", 100, 500),
        slice_("aten::linear", 100, 200),
        slice_("aten::addmm", 110, 100),
        slice_("aten::copy_", 230, 50),  # inside of a matmul
        part("attention", 300, 100),
        slice_("aten::bmm", 310, 50),
        slice_("aten::mul", 450, 30),
        part("collectives", 500, 80),
        part("outputs", 600, 300),
        slice_("aten::mm", 610, 200),
        slice_("aten::argmax", 820, 40),
    ]
    times = host_times(reversed(events))
    by_operator: Counter[str] = Counter()
    for (operator, _), duration_us in times.items():
        by_operator[operator] += round(duration_us)
    assert by_operator == {
        "matmul": 400,
        "attention": 100,
        "collectives": 80,
        "other": 120,
        "sampling": 100,
    }
    assert times["attention", "aten::bmm"] == 50.0
    step = RecordedStep(0, 1 * MS)
    summary = summarize([step, RecordedStep(0, 5 * MS)], num_asked=2, events=events, num_traced=1)
    assert shares(summary)["host"] == pytest.approx(0.2)
    assert (summary.source, summary.num_steps, summary.num_steps_in_operators) == ("torch", 2, 1)


def test_on_a_device_kernels_count_and_the_host_is_the_rest() -> None:
    names = [
        ("ampere_bf16_s16816gemm_bf16_128x64", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_wmma>", "matmul"),
        ("fmha_cutlassF_bf16_aligned_64x128_rf_sm80", "attention"),
        ("void flash_fwd_splitkv_kernel<...>", "attention"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "collectives"),
        ("void at::native::reduce_kernel<ArgMaxOps>", "sampling"),
        ("void at::native::elementwise_kernel<...>", "other"),
    ]
    events = [
        slice_(name, 10.0 * index, 2.0, "kernel", tid=7) for index, (name, _) in enumerate(names)
    ]
    times = device_times(events)
    assert {name: operator for operator, name in times} == dict(names)
    summary = summarize([RecordedStep(0, 100_000)], num_asked=1, events=events, num_traced=1)
    assert shares(summary)["host"] == pytest.approx(0.1 - 7 * 0.002)
    assert summary.notes == ["host is the time in which no kernel ran"]


def test_without_steps_there_is_a_summary_that_says_so() -> None:
    summary = summarize([], num_asked=3)
    assert [line.ms for line in summary.operators] == [0.0] * len(OPERATORS)
    assert summary.notes == ["only 0 of 3 steps came before the time was over"]
    assert "only 0 of 3" in render_profile(summary)


def test_the_phases_are_those_of_the_library() -> None:
    from engine.native.library import PhaseTimes

    assert list(PHASES) == [name for name, _ in PhaseTimes._fields_]


@pytest.mark.parametrize(
    ("num_steps", "timeout_s"),
    [(0, 1.0), (MAX_STEPS + 1, 1.0), (1, 0.0), (1, MAX_TIMEOUT_S + 1), (1, float("nan"))],
)
def test_orders_have_bounds(num_steps: int, timeout_s: float) -> None:
    assert not ProfileOrder(num_steps, timeout_s).is_valid
    assert ProfileOrder(MAX_STEPS, MAX_TIMEOUT_S).is_valid


def test_parts_inside_of_parts_and_phases_since_the_step_began_are_told_apart() -> None:
    times = iter(range(100))
    probe = StepProbe()
    phases = {"qkv": 100}
    probe.phase_times_ns = lambda: dict(phases)
    recording = StepRecording(probe, clock_ns=lambda: next(times))
    recording.begin_step()  # 0
    with recording.part("model"), recording.part("collectives"):  # 1 and 2, then 3 and 4
        phases["qkv"] += 7
    recording.end_step(RECORD)  # 5
    (step,) = recording.steps
    assert (step.own_ns("model"), step.own_ns("collectives"), step.duration_ns) == (2, 1, 5)
    assert step.phases_ns == {"qkv": 7}
    assert (step.num_prefill_tokens, step.num_decodes) == (5, 3)


@dataclass
class FakeTracer:
    """Writes ``content``; keeps what it is told."""

    content: bytes | None = b'{"traceEvents": []}'
    calls: list[str] = field(default_factory=list)
    is_broken: bool = False

    def start(self) -> None:
        if self.is_broken:
            raise RuntimeError("somebody else profiles")
        self.calls.append("start")

    @contextmanager
    def stretch(self, name: str) -> Iterator[None]:
        self.calls.append(name)
        yield

    def stop(self) -> None:
        self.calls.append("stop")

    def export(self, max_bytes: int) -> bytes | None:
        return self.content


@dataclass
class Bench:
    """A profiler, and an engine that only tells its probe."""

    tracer: FakeTracer
    max_trace_bytes: int = 10**6
    now_s: float = 0.0

    def __post_init__(self) -> None:
        self.probe = StepProbe()
        self.profiler = StepProfiler(
            self.probe,
            create_tracer=lambda: self.tracer,
            max_trace_bytes=self.max_trace_bytes,
            clock=lambda: self.now_s,
        )

    def step(self, record: StepRecord | None = RECORD) -> None:
        self.profiler.begin_step()
        with self.probe.part("model"):
            pass
        with self.probe.part("outputs"):
            pass
        self.profiler.end_step(record)

    def record(self, num_steps: int) -> Profile:
        self.profiler.start(ProfileOrder(num_steps, 10.0))
        for _ in range(num_steps):
            self.step()
        return self.profiler.wait()


def events_of(profile: Profile) -> list[dict[str, Any]]:
    assert profile.trace is not None
    events: list[dict[str, Any]] = msgspec.json.decode(gzip.decompress(profile.trace))[
        "traceEvents"
    ]
    return events


def test_nobody_listens_before_and_after_a_recording() -> None:
    bench = Bench(FakeTracer())
    bench.step()
    profile = bench.record(2)
    bench.step()
    assert bench.probe.listener is None
    assert profile.summary.num_steps == 2
    assert bench.profiler.is_idle
    assert bench.tracer.calls == ["start", *["step", "model", "outputs"] * 2, "stop"]


def test_steps_that_compute_nothing_do_not_count() -> None:
    bench = Bench(FakeTracer())
    bench.profiler.start(ProfileOrder(1, 10.0))
    bench.step(record=None)
    assert not bench.profiler.is_ready()
    bench.step()
    assert bench.profiler.wait().summary.num_steps == 1


def test_only_the_first_steps_are_traced_and_the_others_are_timed() -> None:
    bench = Bench(FakeTracer())
    profile = bench.record(MAX_TRACED_STEPS + 3)
    assert bench.tracer.calls.count("step") == MAX_TRACED_STEPS
    steps = [event for event in events_of(profile) if event["name"].startswith("step ")]
    assert len(steps) == MAX_TRACED_STEPS + 3
    assert any("steps only" in note for note in profile.summary.notes)


@pytest.mark.parametrize("is_stepping", [False, True])
def test_a_recording_ends_when_its_time_is_over(is_stepping: bool) -> None:
    bench = Bench(FakeTracer())
    bench.profiler.start(ProfileOrder(5, 10.0))
    bench.step()
    assert not bench.profiler.is_ready()
    bench.now_s = 11.0
    if is_stepping:
        bench.step()
    else:
        bench.profiler.is_ready()
    profile = bench.profiler.wait()
    assert profile.summary.num_steps == 1 + is_stepping
    assert "before the time was over" in profile.summary.notes[0]


def test_a_trace_that_is_too_large_loses_torchs_operators_first() -> None:
    noise = [slice_(f"aten::op{index**5}", index, 1) for index in range(3000)]
    content = msgspec.json.encode({"traceEvents": noise})
    large = Bench(FakeTracer(content), max_trace_bytes=5000).record(2)
    assert {event["pid"] for event in events_of(large)} == {PROCESS_ID}
    assert "with torch's operators has" in large.summary.notes[-1]
    nothing = Bench(FakeTracer(content), max_trace_bytes=50).record(2)
    assert nothing.trace is None
    assert "record fewer steps" in nothing.summary.notes[-1]
    assert nothing.summary.num_steps == 2


@pytest.mark.parametrize("content", [None, b"[", b"[]", b"{}"])
def test_without_a_trace_of_torch_the_engines_own_clock_is_left(content: bytes | None) -> None:
    profile = Bench(FakeTracer(content)).record(2)
    assert profile.summary.source == "engine"
    assert any("left out" in note for note in profile.summary.notes)
    assert events_of(profile)


def test_what_cannot_be_worked_up_is_said_and_the_next_recording_works() -> None:
    bench = Bench(FakeTracer(b'{"traceEvents": [{"cat": "kernel", "ph": "X", "dur": "long"}]}'))
    broken = bench.record(1)
    assert broken.trace is None
    assert "worked up" in broken.summary.notes[0]
    bench.tracer.content = b'{"traceEvents": []}'
    assert bench.record(1).trace is not None


def test_a_profiler_of_torch_that_does_not_start_is_said() -> None:
    profile = Bench(FakeTracer(is_broken=True)).record(2)
    assert profile.summary.num_steps == 2
    assert "did not start" in profile.summary.notes[0]


def test_an_engine_that_ends_meanwhile_stops_torchs_profiler() -> None:
    bench = Bench(FakeTracer())
    bench.profiler.start(ProfileOrder(5, 10.0))
    bench.step()
    bench.profiler.close()
    assert bench.tracer.calls[-1] == "stop"
    assert bench.probe.listener is None


def test_a_trace_of_torch_is_passed_on_as_it_was_written() -> None:
    flow = {"ph": "f", "id": 7, "pid": "Spans", "ts": 3, "args": {"x": [1, None, "\u00e9"]}}
    content = msgspec.json.encode(
        {"schemaVersion": 1, "traceEvents": [flow, {**flow, "ph": "X", "dur": 2}], "end": None}
    )
    trace = read_torch_trace(content)
    assert trace is not None
    assert [(event.pid, event.ts, event.dur) for event in trace.slices()] == [("Spans", 3.0, 2.0)]
    profile = Bench(FakeTracer(content)).record(1)
    assert profile.trace is not None
    passed_on = msgspec.json.decode(gzip.decompress(profile.trace))
    assert passed_on["traceEvents"][:2] == [flow, {**flow, "ph": "X", "dur": 2}]
    assert (passed_on["schemaVersion"], passed_on["end"]) == (1, None)


def test_slices_of_our_own_lie_where_torch_saw_the_first_step() -> None:
    content = msgspec.json.encode({"traceEvents": [part("step", 5000.5, 10)]})
    events = events_of(Bench(FakeTracer(content)).record(1))
    begun = next(event for event in events if event["name"] == "step 0")
    assert begun["ts"] == pytest.approx(5000.5, abs=1e-3)
