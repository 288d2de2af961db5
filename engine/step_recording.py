"""The clock of a recording: when each step and its parts began, and how long they took.

Imports no torch; must not know what parts are for.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from engine.observations import StepRecord
from engine.step_probe import Part, StepProbe


@dataclass(slots=True)
class RecordedPart:
    """One stretch of a step."""

    name: Part
    started_ns: int
    duration_ns: int = 0
    inner_ns: int = 0
    """Of it, in parts that lie inside."""

    @property
    def own_ns(self) -> int:
        return self.duration_ns - self.inner_ns


@dataclass(slots=True)
class RecordedStep:
    """Times in nanoseconds."""

    started_ns: int
    duration_ns: int = 0
    parts: list[RecordedPart] = field(default_factory=list)
    phases_ns: Mapping[str, int] = field(default_factory=dict)
    """Of the compiled step."""
    num_prefill_tokens: int = 0
    num_decodes: int = 0

    def own_ns(self, name: Part) -> int:
        """Time in all parts of that name, without what lies inside of them."""
        return sum(part.own_ns for part in self.parts if part.name == name)


class StepRecording:
    """A ``StepListener``. Call order: ``begin_step``, ``end_step``, again and again."""

    def __init__(
        self, probe: StepProbe, clock_ns: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.steps: list[RecordedStep] = []
        self.origin_ns: int | None = None
        """When the first step began, counted or not."""
        self._probe = probe
        self._clock_ns = clock_ns
        self._step: RecordedStep | None = None
        self._open: list[RecordedPart] = []
        self._phases_before_ns: Mapping[str, int] = {}

    def begin_step(self) -> None:
        self._phases_before_ns = self._phases_ns()
        self._open.clear()
        self._step = RecordedStep(self._clock_ns())
        if self.origin_ns is None:
            self.origin_ns = self._step.started_ns

    def end_step(self, record: StepRecord | None) -> None:
        """A step in which nothing was computed (``record`` is None) does not count."""
        step, self._step = self._step, None
        if step is None or record is None:
            return
        step.duration_ns = self._clock_ns() - step.started_ns
        before_ns = self._phases_before_ns
        step.phases_ns = {name: ns - before_ns[name] for name, ns in self._phases_ns().items()}
        step.num_prefill_tokens = record.num_prefill_tokens
        step.num_decodes = record.num_decodes
        self.steps.append(step)

    @contextmanager
    def part(self, name: Part) -> Iterator[None]:
        part = RecordedPart(name, self._clock_ns())
        self._open.append(part)
        try:
            yield
        finally:
            part.duration_ns = self._clock_ns() - part.started_ns
            self._open.pop()
            if self._open:
                self._open[-1].inner_ns += part.duration_ns
            if self._step is not None:
                self._step.parts.append(part)

    def _phases_ns(self) -> Mapping[str, int]:
        phase_times_ns = self._probe.phase_times_ns
        return {} if phase_times_ns is None else phase_times_ns()
