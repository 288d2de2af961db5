"""A load whose rate follows a schedule, whatever the answers do: arrivals, and how they are sent.

Bounded in count and in time. Must not know what a request is: `Send` does one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.load import LoadOutcome, Send
from benchmarks.timeline import RequestRecord


@dataclass(frozen=True, slots=True)
class Span:
    """A part of the schedule, from its begin up to its end."""

    begin_s: float
    end_s: float

    def covers(self, at_s: float) -> bool:
        return self.begin_s <= at_s < self.end_s

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """Requests per second, straight between the points (time after the start, rate)."""

    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        times_s = [time_s for time_s, _ in self.points]
        if len(times_s) < 2 or times_s[0] != 0.0 or times_s != sorted(times_s):
            raise ValueError("a schedule needs two points or more, from 0 s on, in order of time")
        if min(rate for _, rate in self.points) < 0.0:
            raise ValueError("a rate is negative")

    @property
    def duration_s(self) -> float:
        return self.points[-1][0]

    def rate_at(self, time_s: float) -> float:
        """At the end of the last point and after it: none."""
        for (begin_s, low), (end_s, high) in pairwise(self.points):
            if begin_s <= time_s < end_s:
                return low + (high - low) * (time_s - begin_s) / (end_s - begin_s)
        return 0.0

    def arrivals_s(self, seed: int) -> list[float]:
        """A Poisson process of this rate, thinned from one of the highest (Lewis and Shedler)."""
        highest = max(rate for _, rate in self.points)
        draw = random.Random(f"{seed}/schedule/{self.points}")
        arrivals: list[float] = []
        at_s = 0.0
        while highest > 0.0:
            at_s += draw.expovariate(highest)
            if at_s >= self.duration_s:
                break
            if draw.random() * highest < self.rate_at(at_s):
                arrivals.append(at_s)
        return arrivals


async def send_at(
    arrivals_s: Sequence[float], start_s: float, timeout_s: float, send: Send
) -> LoadOutcome:
    """Each request at its time after ``start_s`` (of `time.perf_counter`).

    What still runs ``timeout_s`` after the last of them is cancelled.
    """
    records: list[RequestRecord] = []

    async def send_one(index: int, intended_s: float) -> None:
        records.append(await send(index, intended_s))

    async def send_all() -> None:
        async with asyncio.TaskGroup() as group:
            for index, arrival_s in enumerate(arrivals_s):
                intended_s = start_s + arrival_s
                await asyncio.sleep(max(0.0, intended_s - time.perf_counter()))
                group.create_task(send_one(index, intended_s))

    last_s = start_s + (arrivals_s[-1] if arrivals_s else 0.0)
    try:
        async with asyncio.timeout(max(0.0, last_s - time.perf_counter()) + timeout_s):
            await send_all()
    except TimeoutError:
        pass
    return LoadOutcome(
        records=tuple(records),
        num_unfinished=len(arrivals_s) - len(records),
        duration_s=time.perf_counter() - start_s,
    )
