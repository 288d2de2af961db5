"""When a rank's process looks for cyclic garbage: between steps, never in one.

What a step makes is freed by reference counts; cycles are few (exceptions and their tracebacks),
but somebody must look for them. Python would do so amid a step, after so many allocations. Here
new objects are looked through when there are many, all objects when there is nothing to do or it
has not been done for long; the model, which lives for ever, is left out.
"""

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

YOUNG_OBJECTS = 2000
"""A look at so many new ones takes about 0.1 ms."""
FULL_PERIOD_S = 60.0
"""Under load everything is looked through so seldom: it takes milliseconds."""
_YOUNG, _FULL = 0, 2


@dataclass(slots=True)
class GarbageTotals:
    """Since start."""

    num_pauses: int = 0
    pause_s: float = 0.0
    longest_pause_s: float = 0.0


class GarbageCollector:
    """Owner of the process's collection from ``take_over`` on; does nothing before."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last_full_s = clock()
        self._is_in_charge = False
        self.totals = GarbageTotals()

    def take_over(self) -> None:
        """What is alive now stays for ever; nothing is collected but by the calls below."""
        gc.collect()
        gc.freeze()
        gc.disable()
        self._is_in_charge = True
        self._last_full_s = self._clock()

    def collect_between_steps(self) -> None:
        """After each step; returns at once as a rule."""
        if not self._is_in_charge:
            return
        if self._clock() - self._last_full_s >= FULL_PERIOD_S:
            self._collect(_FULL)
        elif gc.get_count()[0] >= YOUNG_OBJECTS:
            self._collect(_YOUNG)

    def collect_idle(self) -> None:
        """Before a wait for work: everything, if there is something new."""
        num_young, *older = gc.get_count()
        if self._is_in_charge and (num_young >= YOUNG_OBJECTS or any(older)):
            self._collect(_FULL)

    def _collect(self, generation: int) -> None:
        started_s = self._clock()
        gc.collect(generation)
        now_s = self._clock()
        pause_s = now_s - started_s
        if generation == _FULL:
            self._last_full_s = now_s
        self.totals.num_pauses += 1
        self.totals.pause_s += pause_s
        self.totals.longest_pause_s = max(self.totals.longest_pause_s, pause_s)
