"""Blocking work that ends before who waits for it goes on."""

import asyncio
import threading

import pytest

from cache_tiers.weights.worker_threads import run_in_threads


async def test_all_end_before_the_first_error_is_raised() -> None:
    turn = iter(range(3))
    has_failed, num_ended = threading.Event(), []

    def work() -> None:
        if next(turn) == 0:
            has_failed.set()
            raise OSError("the disk is gone")
        has_failed.wait(10)
        num_ended.append(1)

    with pytest.raises(OSError, match="the disk is gone"):
        await run_in_threads(work, 3, stop=lambda: None)
    assert len(num_ended) == 2


async def test_a_cancel_stops_them_and_waits_even_twice() -> None:
    is_stopped, has_ended = threading.Event(), threading.Event()

    def work() -> None:
        is_stopped.wait(10)
        has_ended.wait(0.05)
        has_ended.set()

    running = asyncio.create_task(run_in_threads(work, 2, stop=is_stopped.set))
    for _ in range(2):
        await asyncio.sleep(0.01)
        running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert has_ended.is_set()


async def test_the_loop_goes_on_while_they_end_after_two_cancels() -> None:
    may_end = threading.Event()
    running = asyncio.create_task(run_in_threads(lambda: _wait(may_end), 1, stop=lambda: None))
    for _ in range(3):
        await asyncio.sleep(0.01)
        running.cancel()
    await asyncio.sleep(0.01)
    assert not running.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_without_threads_nothing_is_done() -> None:
    await run_in_threads(lambda: pytest.fail("called"), 0, stop=lambda: None)


def _wait(event: threading.Event) -> None:
    event.wait(10)
