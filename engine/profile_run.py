"""One recording: what is told by the probe and traced by torch, and the profile made of it.

Torch is asked to trace the first steps only, since its events are many. Must not know whose engine
it is, or when a recording begins.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import msgspec

from engine.observations import StepRecord
from engine.profile import Profile, ProfileOrder, ProfileSummary
from engine.profile_summary import summarize
from engine.profile_trace import encode_trace
from engine.step_probe import Part, StepProbe
from engine.step_recording import StepRecording
from engine.torch_trace import TorchTrace, read_torch_trace
from engine.trace_times import PART_LABEL, STEP_LABEL

logger = logging.getLogger(__name__)

MAX_TRACED_STEPS = 8
"""A step in plain torch is some thousand operators, and torch writes 100,000 in a tenth of a second
in which no other thread runs."""
MAX_TORCH_TRACE_BYTES = 32 * 1024 * 1024
"""Not yet packed; more isn't read. Going through so much once takes about 20 ms."""


class Tracer(Protocol):
    """See `engine.operator_tracer`."""

    def start(self) -> None: ...

    def stretch(self, name: str) -> AbstractContextManager[None]: ...

    def stop(self) -> None: ...

    def export(self, max_bytes: int) -> bytes | None: ...


class ProfileRun:
    """One recording; the probe's listener."""

    def __init__(
        self, probe: StepProbe, order: ProfileOrder, tracer: Tracer | None, deadline_s: float
    ) -> None:
        self.order = order
        self.deadline_s = deadline_s
        self.recording = StepRecording(probe)
        self.notes: list[str] = []
        self.num_traced = 0
        self.tracer = tracer
        self._is_tracing = False
        self._stretch: AbstractContextManager[None] | None = None

    @property
    def is_complete(self) -> bool:
        return len(self.recording.steps) >= self.order.num_steps

    def begin_step(self) -> None:
        if self.tracer is not None and not self._is_tracing and self.num_traced == 0:
            self._start_tracing(self.tracer)
        if self.tracer is not None and self._is_tracing:
            self._stretch = self.tracer.stretch(STEP_LABEL.removeprefix(PART_LABEL))
            self._stretch.__enter__()
        self.recording.begin_step()

    def end_step(self, record: StepRecord | None) -> None:
        self.recording.end_step(record)
        if self._stretch is not None:
            self._stretch.__exit__(None, None, None)
            self._stretch = None
            self.num_traced = len(self.recording.steps)
            if self.num_traced >= MAX_TRACED_STEPS:
                self.stop_tracing()

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        with self.recording.part(name):
            if self.tracer is None or not self._is_tracing:
                yield
                return
            with self.tracer.stretch(name):
                yield

    def stop_tracing(self) -> None:
        if self.tracer is not None and self._is_tracing:
            self._is_tracing = False
            self.tracer.stop()

    def _start_tracing(self, tracer: Tracer) -> None:
        try:
            tracer.start()
            self._is_tracing = True
        except RuntimeError as error:  # somebody else profiles this process, or CUPTI is missing
            logger.warning("torch's profiler does not start: %s", error)
            self.notes.append("torch's profiler did not start: see the engine's log")
            self.tracer = None


def make_profile(running: ProfileRun, max_trace_bytes: int) -> Profile:
    torch_trace = _torch_trace(running)
    events = [] if torch_trace is None else list(torch_trace.slices())
    # The first step stands in both: that brings our clock to torch's.
    origin_us = min((event.ts for event in events if event.name == STEP_LABEL), default=0.0)
    steps, notes = running.recording.steps, running.notes
    summary = summarize(
        steps,
        num_asked=running.order.num_steps,
        events=events,
        num_traced=running.num_traced,
        notes=notes,
    )
    if torch_trace is not None and running.num_traced < len(steps):
        notes.append(f"torch's operators are in the trace of {running.num_traced} steps only")
    for content in (torch_trace, None) if torch_trace is not None else (None,):
        trace = encode_trace(
            running.recording,
            content,
            {"summary": _with_notes(summary, notes)},
            origin_us=0.0 if content is None else origin_us,
        )
        if len(trace) <= max_trace_bytes:
            return Profile(_with_notes(summary, notes), trace)
        what = "without torch's operators" if content is None else "with torch's operators"
        notes.append(
            f"the trace {what} has {len(trace)} bytes, more than the limit of {max_trace_bytes}: "
            "record fewer steps"
        )
    return Profile(_with_notes(summary, notes), None)


def _torch_trace(running: ProfileRun) -> TorchTrace | None:
    if running.tracer is None or running.num_traced == 0:
        return None
    content = running.tracer.export(MAX_TORCH_TRACE_BYTES)
    trace = None if content is None else read_torch_trace(content)
    if trace is None:
        running.notes.append("torch's trace was too large, or broken, and is left out")
    return trace


def _with_notes(summary: ProfileSummary, notes: list[str]) -> ProfileSummary:
    """Those of the summary itself, then what concerns the trace."""
    added = [note for note in notes if note not in summary.notes]
    return msgspec.structs.replace(summary, notes=[*summary.notes, *added])
