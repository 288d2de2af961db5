"""Records some steps of a running engine: where their time goes, and a trace to look at.

One recording at a time; nothing is measured between recordings. Driven by whoever owns the step
loop, on its thread: ``begin_step`` and ``end_step`` around each step. Torch is asked to trace the
first steps only, since its events are many; what was recorded is worked up on another thread, so
that no step waits for it. Imports torch only where the runner computes with it.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import msgspec

from engine.observations import StepRecord
from engine.profile import Profile, ProfileOrder, ProfileSummary
from engine.profile_summary import summarize
from engine.profile_trace import decode_torch_trace, encode_trace
from engine.step_probe import Part, StepProbe
from engine.step_recording import StepRecording
from engine.trace_times import PART_LABEL, STEP_LABEL

logger = logging.getLogger(__name__)

MAX_TRACED_STEPS = 32
"""A step in plain torch is some thousand operators."""
MAX_TORCH_TRACE_BYTES = 128 * 1024 * 1024
"""Not yet packed; more isn't read."""
MAX_TRACE_BYTES = 4 * 1024 * 1024
"""Packed: it travels between answers to the gateway."""


class Tracer(Protocol):
    """See `engine.operator_tracer`."""

    def start(self) -> None: ...

    def stretch(self, name: str) -> AbstractContextManager[None]: ...

    def stop(self) -> None: ...

    def export(self, max_bytes: int) -> bytes | None: ...


class StepProfiler:
    """Owner of the recording under way."""

    def __init__(
        self,
        probe: StepProbe | None = None,
        *,
        create_tracer: Callable[[], Tracer] | None = None,
        max_trace_bytes: int = MAX_TRACE_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``create_tracer``: by default torch's profiler, if the runner is one of torch."""
        self._probe = probe or StepProbe()
        self._create_tracer = create_tracer or self._torch_tracer
        self._max_trace_bytes = max_trace_bytes
        self._clock = clock
        self._running: _Running | None = None
        self._worker: threading.Thread | None = None
        self._profile: Profile | None = None

    @property
    def is_idle(self) -> bool:
        """Whether ``start`` may be called."""
        return self._running is None and self._worker is None

    def start(self, order: ProfileOrder) -> None:
        """Record the steps that come now. Precondition: ``is_idle``."""
        assert self.is_idle, "one recording at a time"
        assert order.is_valid
        self._running = _Running(
            self._probe, order, self._create_tracer(), self._clock() + order.timeout_s
        )
        self._probe.listener = self._running

    def begin_step(self) -> None:
        if self._running is not None:
            self._running.begin_step()

    def end_step(self, record: StepRecord | None) -> None:
        """``record``: of the step, None if nothing was computed."""
        if self._running is not None:
            self._running.end_step(record)
            if self._running.is_complete or self._clock() >= self._running.deadline_s:
                self._stop(self._running)

    def is_ready(self) -> bool:
        """Whether ``take`` has something; ends a recording whose time is over."""
        if self._running is not None and self._clock() >= self._running.deadline_s:
            self._stop(self._running)
        return self._profile is not None

    def take(self) -> Profile | None:
        """What was recorded, once."""
        profile, self._profile = self._profile, None
        if profile is not None:
            self._worker = None
        return profile

    def wait(self) -> Profile:
        """For an owner without a loop: what was recorded so far. Precondition: ``start``."""
        if self._running is not None:
            self._stop(self._running)
        assert self._worker is not None, "wait follows start"
        self._worker.join()
        profile = self.take()
        assert profile is not None
        return profile

    def close(self) -> None:
        """Give up what is under way: torch does not survive the end of the process meanwhile."""
        if self._running is not None:
            self._running.stop_tracing()
            self._running = self._probe.listener = None

    def _torch_tracer(self) -> Tracer | None:
        if not self._probe.has_torch:
            return None
        from engine.operator_tracer import OperatorTracer

        return OperatorTracer(self._probe.device)

    def _stop(self, running: "_Running") -> None:
        self._probe.listener = None
        self._running = None
        running.stop_tracing()
        self._worker = threading.Thread(
            target=self._work_up, args=(running,), name="profile", daemon=True
        )
        self._worker.start()

    def _work_up(self, running: "_Running") -> None:
        try:
            self._profile = _make_profile(running, self._max_trace_bytes)
        except Exception:  # whatever torch wrote: the engine goes on, and whoever asked is told
            logger.exception("a recording could not be worked up")
            running.notes.append("the recording could not be worked up: see the engine's log")
            summary = summarize(
                running.recording.steps, num_asked=running.order.num_steps, notes=running.notes
            )
            self._profile = Profile(summary, None)


class _Running:
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


def _make_profile(running: _Running, max_trace_bytes: int) -> Profile:
    torch_trace = _torch_trace(running)
    steps, notes = running.recording.steps, running.notes
    summary = summarize(
        steps,
        num_asked=running.order.num_steps,
        events=() if torch_trace is None else torch_trace["traceEvents"],
        num_traced=running.num_traced,
        notes=notes,
    )
    if torch_trace is not None and running.num_traced < len(steps):
        notes.append(f"torch's operators are in the trace of {running.num_traced} steps only")
    for content in (torch_trace, None) if torch_trace is not None else (None,):
        trace = encode_trace(running.recording, content, {"summary": _with_notes(summary, notes)})
        if len(trace) <= max_trace_bytes:
            return Profile(_with_notes(summary, notes), trace)
        what = "without torch's operators" if content is None else "with torch's operators"
        notes.append(
            f"the trace {what} has {len(trace)} bytes, more than the limit of {max_trace_bytes}: "
            "record fewer steps"
        )
    return Profile(_with_notes(summary, notes), None)


def _torch_trace(running: _Running) -> dict[str, Any] | None:
    if running.tracer is None or running.num_traced == 0:
        return None
    content = running.tracer.export(MAX_TORCH_TRACE_BYTES)
    trace = None if content is None else decode_torch_trace(content)
    if trace is None:
        running.notes.append("torch's trace was too large, or broken, and is left out")
    return trace


def _with_notes(summary: ProfileSummary, notes: list[str]) -> ProfileSummary:
    """Those of the summary itself, then what concerns the trace."""
    added = [note for note in notes if note not in summary.notes]
    return msgspec.structs.replace(summary, notes=[*summary.notes, *added])
