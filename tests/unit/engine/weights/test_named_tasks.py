import asyncio
import logging

import pytest

from engine.weights.named_tasks import NamedTasks


async def test_a_task_is_known_by_name_until_it_ends() -> None:
    ended = asyncio.Event()
    tasks = NamedTasks(ended.set)
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()

    tasks.begin("one", work())
    assert "one" in tasks
    gate.set()
    await ended.wait()
    assert "one" not in tasks


async def test_a_task_that_clears_up_is_stopped_once() -> None:
    tasks = NamedTasks(lambda: None)
    has_cleared_up = False

    async def work() -> None:
        nonlocal has_cleared_up
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(0.01)
            has_cleared_up = True

    tasks.begin("one", work())
    await asyncio.sleep(0)
    for _ in range(3):
        tasks.stop("one")
        await asyncio.sleep(0)
    await tasks.close()
    assert has_cleared_up
    assert "one" not in tasks


async def test_a_fault_is_logged_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    ended = asyncio.Event()
    tasks = NamedTasks(ended.set)

    async def work() -> None:
        raise ValueError("a fault")

    with caplog.at_level(logging.ERROR):
        tasks.begin("one", work())
        await ended.wait()
    assert "one failed" in caplog.text
    tasks.begin("one", asyncio.sleep(0))
    await tasks.close()


async def test_closing_stops_what_is_begun_meanwhile(caplog: pytest.LogCaptureFixture) -> None:
    tasks = NamedTasks(lambda: None)

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            tasks.begin("two", asyncio.sleep(100))

    tasks.begin("one", work())
    await asyncio.sleep(0)
    await tasks.close()
    assert "two" not in tasks
    assert not caplog.records
