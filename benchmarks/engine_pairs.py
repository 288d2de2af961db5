"""Measures cases on several engines in turn, so that each pair sees the same machine.

Must not know which engines they are, and nothing of results.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.engine_cases import Case
from benchmarks.engine_timing import Speed


class Contestant(Protocol):
    """An engine that waits with its model loaded."""

    @property
    def name(self) -> str: ...

    def measure(self, case: Case) -> Speed: ...

    def cpu_time_s(self) -> float:
        """Used so far by all threads and processes of it."""
        ...


@dataclass(slots=True)
class IdleUse:
    """What the engines that wait take from the one that is measured."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)

    def cores(self) -> dict[str, float]:
        """Mean number of cores, of each that waited."""
        return {name: self.cpu_s[name] / waited_s for name, waited_s in self.waited_s.items()}

    def add(self, name: str, cpu_s: float, waited_s: float) -> None:
        self.cpu_s[name] = self.cpu_s.get(name, 0.0) + cpu_s
        self.waited_s[name] = self.waited_s.get(name, 0.0) + waited_s


def measure_in_turn(
    case: Case,
    contestants: Sequence[Contestant],
    num_runs: int,
    idle: IdleUse,
    clock: Callable[[], float] = time.perf_counter,
) -> Mapping[str, list[Speed]]:
    """``num_runs`` of a case on each, one after the other, after one on each that doesn't count."""
    speeds: dict[str, list[Speed]] = {contestant.name: [] for contestant in contestants}
    for number in range(num_runs + 1):
        for contestant in contestants:
            others = [other for other in contestants if other is not contestant]
            before_s = [other.cpu_time_s() for other in others]
            started_s = clock()
            speed = contestant.measure(case)
            waited_s = clock() - started_s
            for other, cpu_s in zip(others, before_s, strict=True):
                idle.add(other.name, other.cpu_time_s() - cpu_s, waited_s)
            if number:
                speeds[contestant.name].append(speed)
    return speeds
