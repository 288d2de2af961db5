"""When requests are sent: an open loop at a rate, or a closed loop of so many at a time.

Bounded in count and in time. Must not know what a request is: `Send` does one.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass

from benchmarks.timeline import RequestRecord

# (number of the request, when it should be sent in perf_counter() seconds) -> what happened
Send = Callable[[int, float], Awaitable[RequestRecord]]


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests arrive at random (Poisson) at a mean rate, however slow the answers are.

    With sessions it is they that arrive; the turns of one follow each other.
    """

    rate_per_s: float
    num_requests: int
    timeout_s: float
    seed: int
    session_len: int = 1
    """Requests of one session, each sent when the one before is answered."""
    think_s: float = 0.0
    """Mean pause between the turns of a session."""


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """So many clients, each of which sends its next request when its last one is answered.

    A client goes through a session before it begins another one.
    """

    concurrency: int
    num_requests: int
    timeout_s: float
    seed: int = 0
    session_len: int = 1
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class LoadOutcome:
    """What a run gave. Requests not finished in time are counted, and have no record."""

    records: tuple[RequestRecord, ...]
    num_unfinished: int
    duration_s: float  # from the first intended send to the last answer


def poisson_arrivals_s(rate_per_s: float, num_requests: int, seed: int) -> list[float]:
    """Arrival times after the start: the first at 0, then exponential gaps of mean 1/rate."""
    random_gaps = random.Random(f"{seed}/arrivals")
    arrivals_s = [0.0]
    for _ in range(num_requests - 1):
        arrivals_s.append(arrivals_s[-1] + random_gaps.expovariate(rate_per_s))
    return arrivals_s


async def run_load(load: OpenLoop | ClosedLoop, send: Send) -> LoadOutcome:
    """Send the requests of `load`; after its timeout what still runs is cancelled."""
    records: list[RequestRecord] = []

    async def send_session(number: int, intended_s: float) -> None:
        first = number * load.session_len
        pauses = random.Random(f"{load.seed}/pauses/{number}")
        for index in range(first, min(first + load.session_len, load.num_requests)):
            if index > first:
                if load.think_s:
                    await asyncio.sleep(pauses.expovariate(1 / load.think_s))
                intended_s = time.perf_counter()
            records.append(await send(index, intended_s))

    num_sessions = -(-load.num_requests // load.session_len)
    start_s = time.perf_counter()
    if isinstance(load, OpenLoop):
        rate_per_s = load.rate_per_s / load.session_len
        arrivals_s = poisson_arrivals_s(rate_per_s, num_sessions, load.seed)
        running = _open_loop(arrivals_s, start_s, send_session)
    else:
        running = _closed_loop(load.concurrency, num_sessions, send_session)
    try:
        async with asyncio.timeout(load.timeout_s):
            await running
    except TimeoutError:
        end_s = time.perf_counter()
    else:
        end_s = max(record.end_s for record in records)
    return LoadOutcome(
        records=tuple(records),
        num_unfinished=load.num_requests - len(records),
        duration_s=end_s - start_s,
    )


_SendSession = Callable[[int, float], Coroutine[None, None, None]]


async def _open_loop(arrivals_s: Sequence[float], start_s: float, send: _SendSession) -> None:
    async with asyncio.TaskGroup() as group:
        for number, arrival_s in enumerate(arrivals_s):
            intended_s = start_s + arrival_s
            await asyncio.sleep(max(0.0, intended_s - time.perf_counter()))
            group.create_task(send(number, intended_s))


async def _closed_loop(concurrency: int, num_sessions: int, send: _SendSession) -> None:
    numbers = iter(range(num_sessions))

    async def work() -> None:
        for number in numbers:
            await send(number, time.perf_counter())

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, num_sessions)):
            group.create_task(work())
