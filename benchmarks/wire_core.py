"""How much of one core a process and its children use, and how much others take from them."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class CoreUse:
    """Shares of the time between two readings."""

    own: float
    others: float
    """What else ran there: with more than a little of it, latencies are not those of the wire."""


@dataclass(frozen=True, slots=True)
class CoreReading:
    """CPU seconds up to now."""

    at_s: float
    own_s: float
    busy_s: float

    @classmethod
    def of_pinned(cls) -> CoreReading:
        """Precondition: this process and all of its children are pinned to one core."""
        [core] = os.sched_getaffinity(0)
        process = psutil.Process()
        times = [p.cpu_times() for p in (process, *process.children(recursive=True))]
        core_times = psutil.cpu_times(percpu=True)[core]
        return cls(
            time.monotonic(),
            sum(t.user + t.system for t in times),
            sum(core_times) - core_times.idle - core_times.iowait,
        )

    def use_since(self, earlier: CoreReading) -> CoreUse:
        duration_s = self.at_s - earlier.at_s
        own = (self.own_s - earlier.own_s) / duration_s
        return CoreUse(own, max(0.0, (self.busy_s - earlier.busy_s) / duration_s - own))
