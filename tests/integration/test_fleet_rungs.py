"""Engines that sleep, wake and leave while answers are streamed: clients see the same answers."""

import asyncio
import re
from itertools import count

import pytest

from app.autoscaling_messages import ModelOrders, ScaleOrders
from cache_tiers.rung import Rung
from engine.front import EngineFront
from tests.integration.chain import Chain, running_chain
from tests.integration.test_fleet_changes import (
    NUM_STREAMS,
    NUM_TOKENS,
    PACED,
    Stream,
    check_nothing_is_left,
    streaming,
    until,
)
from tests.quickstart import MODEL

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HASTY = PACED.model_copy(update={"hand_over_after_s": 0.3})


def check_answers(streams: list[Stream], undisturbed: list[Stream]) -> None:
    assert [stream.error for stream in streams] == [None] * NUM_STREAMS
    assert [stream.num_tokens for stream in streams] == [NUM_TOKENS] * NUM_STREAMS
    assert [stream.text for stream in streams] == [stream.text for stream in undisturbed]


def order(chain: Chain, sequence: int, parked: set[int]) -> None:
    """All engines sleep or serve."""
    rungs = {
        f"{MODEL}/{number}": Rung.PARKED if number in parked else Rung.SERVING
        for number in range(len(chain.fronts))
    }
    chain.gateway.take_orders(ScaleOrders(1, sequence, (ModelOrders(MODEL, rungs),)))


def rungs(chain: Chain) -> list[Rung]:
    return [front.rung.rung for front in chain.fronts]


def num_moved_by(front: EngineFront) -> int:
    page = front.render_metrics().decode()
    [value] = re.findall(r"^headwater:requests_moved_total{.*} (\S+)$", page, re.MULTILINE)
    return int(float(value))


async def test_streams_go_on_while_engines_sleep_and_wake() -> None:
    numbers = count(1)
    async with running_chain(HASTY, num_engines=3) as chain:
        async with streaming(chain) as undisturbed:
            pass
        async with streaming(chain) as disturbed:
            for parked in ({0}, {1, 2}, {0, 2}, set[int]()):
                order(chain, next(numbers), parked)
                wanted = [Rung.PARKED if n in parked else Rung.SERVING for n in range(3)]
                await until(lambda wanted=wanted: rungs(chain) == wanted)  # type: ignore[misc]
        check_nothing_is_left(chain, chain.fronts)
        num_moved = [num_moved_by(front) for front in chain.fronts]
    check_answers(disturbed, undisturbed)
    assert all(num_moved)


async def test_orders_that_change_all_the_time_disturb_nobody() -> None:
    async with running_chain(HASTY, num_engines=2) as chain:
        async with streaming(chain) as undisturbed:
            pass
        async with streaming(chain) as disturbed:
            for number in range(1, 25):
                order(chain, number, {0} if number % 3 else set())
                await asyncio.sleep(0.15)
            order(chain, 100, set())
        await until(lambda: rungs(chain) == [Rung.SERVING] * 2)
        check_nothing_is_left(chain, chain.fronts)
    check_answers(disturbed, undisturbed)


async def test_a_drain_that_hands_over_is_quick_and_loses_no_token() -> None:
    async with running_chain(PACED, num_engines=3) as chain:
        async with streaming(chain) as undisturbed:
            pass
        async with streaming(chain) as disturbed:
            async with asyncio.timeout(1.5):  # the answers take some five seconds
                assert await chain.fronts[0].drain(hand_over_after_s=0.2)
        check_nothing_is_left(chain, chain.fronts)
    check_answers(disturbed, undisturbed)


async def test_the_last_engine_that_can_go_on_with_answers_ends_them_where_they_are() -> None:
    """As while all replicas are replaced by others whose KV is another one."""
    newer = PACED.model_copy(update={"block_size_tokens": 32})
    async with running_chain(PACED, num_engines=2) as chain:
        async with streaming(chain) as undisturbed:
            pass
        async with streaming(chain) as disturbed, chain.another_engine(newer) as front:
            await until(lambda: front.num_connected == 1)
            for old in chain.fronts:
                assert await old.drain(hand_over_after_s=0.2)
        check_nothing_is_left(chain, chain.fronts)
        num_moved = [num_moved_by(old) for old in chain.fronts]
    check_answers(disturbed, undisturbed)
    assert num_moved[0] > 0
    assert num_moved[1] == 0
