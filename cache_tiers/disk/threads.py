"""Blocking work beside the event loop. Must not know what it does."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


async def run_all(threads: ThreadPoolExecutor, jobs: Sequence[Callable[[], T]]) -> list[T]:
    """All jobs side by side; raises the first error, when all have ended."""
    loop = asyncio.get_running_loop()
    futures = [loop.run_in_executor(threads, job) for job in jobs]
    if futures:
        await asyncio.wait(futures)
    return [future.result() for future in futures]
