"""Jobs beside the event loop: all of them end, in any order, before the caller goes on."""

import threading
import time
from functools import partial

import pytest

from cache_tiers.disk.threads import IoThreads


async def test_results_come_in_the_order_of_the_jobs() -> None:
    threads = IoThreads(3, "test")

    def job(number: int) -> int:
        time.sleep(0.001 * (number % 3))
        return number

    assert await threads.run_all([partial(job, number) for number in range(20)]) == [*range(20)]
    assert await threads.run_all([]) == []
    threads.close()


async def test_as_many_jobs_as_threads_run_at_a_time() -> None:
    threads = IoThreads(3, "test")
    together = threading.Barrier(3, timeout=10)

    await threads.run_all([together.wait] * 9)

    threads.close()


async def test_an_error_is_raised_when_all_have_ended() -> None:
    threads = IoThreads(2, "test")
    ended: list[int] = []

    def fail() -> None:
        raise ZeroDivisionError

    def end() -> None:
        time.sleep(0.01)
        ended.append(1)

    with pytest.raises(ZeroDivisionError):
        await threads.run_all([fail, end, end])
    assert len(ended) == 2
    threads.close()
