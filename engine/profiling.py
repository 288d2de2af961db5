"""Records some steps of a running engine: where their time goes, and a trace to look at.

One recording at a time; nothing is measured between recordings. Driven by whoever owns the step
loop, on its thread: ``begin_step`` and ``end_step`` around each step. What was recorded is worked
up on another thread. The step that ends torch's trace waits for torch to gather its events, about
10 ms for each traced step of some thousand operators. Those that follow share the interpreter with
the other thread for a fifth of a second: slower, but held up for no longer than torch takes to
write the events, about 5 ms for each such step. Imports torch only where the runner computes with
it.
"""

import logging
import threading
import time
from collections.abc import Callable

from engine.observations import StepRecord
from engine.profile import Profile, ProfileOrder
from engine.profile_run import ProfileRun, Tracer, make_profile
from engine.profile_summary import summarize
from engine.step_probe import StepProbe

logger = logging.getLogger(__name__)

MAX_TRACE_BYTES = 4 * 1024 * 1024
"""Packed: it travels between answers to the gateway."""


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
        self._running: ProfileRun | None = None
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
        self._running = ProfileRun(
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

    def _stop(self, running: ProfileRun) -> None:
        self._probe.listener = None
        self._running = None
        running.stop_tracing()
        self._worker = threading.Thread(
            target=self._work_up, args=(running,), name="profile", daemon=True
        )
        self._worker.start()

    def _work_up(self, running: ProfileRun) -> None:
        try:
            self._profile = make_profile(running, self._max_trace_bytes)
        except Exception:  # whatever torch wrote: the engine goes on, and whoever asked is told
            logger.exception("a recording could not be worked up")
            running.notes.append("the recording could not be worked up: see the engine's log")
            summary = summarize(
                running.recording.steps, num_asked=running.order.num_steps, notes=running.notes
            )
            self._profile = Profile(summary, None)
