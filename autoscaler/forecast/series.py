"""Turns ticks of load, whenever they come, into steps of equal length; knows nothing of forecasts.

Nonsense is unknown, never a number: no answer, NaN, less than nothing, a clock that steps back. A
tick far above anything of the last minutes is cut down until a second one in a row confirms it.
"""

import math
from collections import deque
from dataclasses import dataclass

MAX_GAP_S = 30.0
"""A tick speaks for the time since the tick before, but for no more than this, or two steps."""
SPIKE_RATIO = 4.0
SPIKE_FLOOR = 4.0  # replicas: whatever is less may come from nothing at once
SPIKE_MEMORY_S = 300.0
MAX_LOAD = 1e6  # replicas: what is more is no load but a fault
MAX_CLOCK_S = 1e12  # a later time is no clock's
MAX_STEPS = 2_000
"""Walked at once: after a longer gap, or a clock that leapt, all before it is as good as gone."""


@dataclass(frozen=True, slots=True)
class Step:
    """One closed step."""

    index: int
    end_local_s: float
    load: float | None
    """Mean over the step; None where most of it is unknown."""


class LoadSeries:
    """The steps of one model's load."""

    def __init__(self, step_s: float) -> None:
        if not (math.isfinite(step_s) and step_s > 0):
            raise ValueError(f"step_s is {step_s}: give the length of a step in seconds, above 0")
        self.step_s = step_s
        self._max_gap_s = max(MAX_GAP_S, 2 * step_s)
        self._last_s: float | None = None
        self._index = 0
        self._sum = self._known_s = 0.0  # of the open step
        self._recent: deque[tuple[float, float]] = deque()  # falling maxima of the last minutes
        self._was_spike = False

    def add(self, now_s: float, local_s: float, load: float | None) -> list[Step]:
        """Takes the mean load since the tick before; returns the steps that it closes."""
        is_time = abs(now_s) < MAX_CLOCK_S and abs(local_s) < MAX_CLOCK_S
        if not is_time or (self._last_s is not None and now_s <= self._last_s):
            return []
        if self._last_s is None:
            self._index = math.ceil(now_s / self.step_s - 1e-9) - 1
            self._last_s = self._index * self.step_s
        since_s = max(self._last_s, now_s - self._max_gap_s)
        value = self._checked(now_s, load)
        closed: list[Step] = []
        last_index = math.floor(now_s / self.step_s + 1e-9)
        self._index = max(self._index, last_index - MAX_STEPS)
        while self._index < last_index:
            end_s = (self._index + 1) * self.step_s
            self._fill(since_s, end_s, value)
            since_s = max(since_s, end_s)
            closed.append(self._close(end_s, local_s - (now_s - end_s)))
        self._fill(since_s, now_s, value)
        self._last_s = now_s
        return closed

    def _fill(self, from_s: float, to_s: float, value: float | None) -> None:
        if value is not None and to_s > from_s:
            self._sum += value * (to_s - from_s)
            self._known_s += to_s - from_s

    def _close(self, end_s: float, end_local_s: float) -> Step:
        is_known = self._known_s >= self.step_s / 2
        step = Step(self._index, end_local_s, self._sum / self._known_s if is_known else None)
        self._sum = self._known_s = 0.0
        self._index += 1
        return step

    def _checked(self, now_s: float, load: float | None) -> float | None:
        if load is None or not 0 <= load <= MAX_LOAD:
            return None
        recent = self._recent
        while recent and recent[0][0] < now_s - SPIKE_MEMORY_S:
            recent.popleft()
        limit = max(SPIKE_FLOOR, SPIKE_RATIO * recent[0][1]) if recent else math.inf
        is_spike = load > limit
        if is_spike and not self._was_spike:
            load = limit / SPIKE_RATIO
        self._was_spike = is_spike
        while recent and recent[-1][1] <= load:
            recent.pop()
        recent.append((now_s, load))
        return load
