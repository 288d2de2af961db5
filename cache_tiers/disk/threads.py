"""Blocking work beside the event loop. Must not know what it does."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class IoThreads:
    """As many requests as there are threads are at a device at a time."""

    def __init__(self, num_threads: int, name: str) -> None:
        self._num_threads = num_threads
        self._pool = ThreadPoolExecutor(num_threads, name)

    async def run_all(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """All jobs side by side; raises the first error, when all have ended.

        Threads go from job to job by themselves: the event loop is woken once for each thread.
        """
        waiting = deque(enumerate(jobs))
        results: dict[int, T] = {}

        def work() -> None:
            while waiting:
                try:
                    number, job = waiting.popleft()
                except IndexError:  # another thread was quicker
                    return
                results[number] = job()

        loop = asyncio.get_running_loop()
        num_wanted = min(len(jobs), self._num_threads)
        futures = [loop.run_in_executor(self._pool, work) for _ in range(num_wanted)]
        if futures:
            await asyncio.wait(futures)
        for future in futures:
            future.result()
        return [results[number] for number in range(len(jobs))]

    def close(self) -> None:
        """Return when the last job has ended."""
        self._pool.shutdown()
