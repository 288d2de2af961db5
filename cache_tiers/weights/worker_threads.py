"""Blocking work beside the event loop that outlives no one who waits for it. Must not know what it
does.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress


async def run_in_threads(
    work: Callable[[], None], num_threads: int, *, stop: Callable[[], None]
) -> None:
    """Call ``work`` in each of ``num_threads``; returns, or raises the first error, when all have
    ended. Also when it is cancelled: then ``stop`` tells them to end soon. So what they write to
    may be released afterwards.
    """
    if num_threads == 0:
        return
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(num_threads, "weights") as pool:
        workers = [loop.run_in_executor(pool, work) for _ in range(num_threads)]
        try:
            await asyncio.wait(workers)
        except asyncio.CancelledError:
            stop()
            while not all(worker.done() for worker in workers):
                with suppress(asyncio.CancelledError):
                    await asyncio.wait(workers)
            raise
        finally:
            errors = [error for worker in workers if (error := worker.exception()) is not None]
        if errors:
            raise errors[0]
