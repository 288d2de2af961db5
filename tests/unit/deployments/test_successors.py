import asyncio

from deployments.successors import SuccessorWatch
from tests.unit.app.routing.virtual_time import run_in_virtual_time


class Serve:
    """Says that there is a successor from the time on that a test sets."""

    def __init__(self, from_s: float) -> None:
        self.from_s = from_s
        self.num_asked = 0

    async def has_successor(self) -> bool:
        self.num_asked += 1
        return asyncio.get_running_loop().time() >= self.from_s


def test_a_successor_that_is_there_is_known_at_once_and_not_asked_for_again() -> None:
    async def run() -> None:
        serve = Serve(from_s=0.0)
        async with SuccessorWatch(serve.has_successor, period_s=5.0) as watch:
            assert watch.is_known
            await asyncio.sleep(60.0)
        assert serve.num_asked == 1

    run_in_virtual_time(run())


def test_a_successor_that_comes_later_is_seen_within_a_period() -> None:
    async def run() -> None:
        now_s = asyncio.get_running_loop().time()
        serve = Serve(from_s=now_s + 12.0)
        async with SuccessorWatch(serve.has_successor, period_s=5.0) as watch:
            await asyncio.sleep(11.0)
            assert not watch.is_known
            await asyncio.sleep(5.0)
            assert watch.is_known

    run_in_virtual_time(run())


def test_who_leaves_asks_no_more() -> None:
    async def run() -> None:
        serve = Serve(from_s=float("inf"))
        async with SuccessorWatch(serve.has_successor, period_s=5.0) as watch:
            await asyncio.sleep(6.0)
        assert serve.num_asked == 2
        await asyncio.sleep(60.0)
        assert serve.num_asked == 2
        assert not watch.is_known

    run_in_virtual_time(run())
