"""A fleet that is scaled while answers are streamed: no client notices."""

import asyncio

import httpx
import pytest

from app.autoscaling_messages import EngineSeen, ModelOrders, ScaleOrders
from cache_tiers.rung import Rung
from tests.integration.chain import Chain, running_chain
from tests.integration.test_fleet_changes import (
    NUM_STREAMS,
    NUM_TOKENS,
    PACED,
    check_nothing_is_left,
    streaming,
    until,
)
from tests.quickstart import MODEL

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


class Autoscaler:
    """In the test's hand."""

    def __init__(self, chain: Chain) -> None:
        self._gateway = chain.gateway
        self._sequence = 0

    def order(self, rung: Rung, *numbers: int, next_ready_s: float | None = None) -> None:
        self._sequence += 1
        rungs = {f"{MODEL}/{number}": rung for number in numbers}
        orders = ModelOrders(MODEL, rungs, next_ready_s)
        self._gateway.take_orders(ScaleOrders(1, self._sequence, (orders,)))

    def seen(self, number: int) -> EngineSeen:
        (demand,) = self._gateway.demand_report().models
        (engine,) = [e for e in demand.engines if e.engine_id == f"{MODEL}/{number}"]
        return engine

    def stands(self, number: int, rung: Rung) -> bool:
        engine = self.seen(number)
        return engine.rung is rung and not engine.is_moving


async def test_answers_of_an_engine_that_goes_to_sleep_and_wakes_are_whole() -> None:
    async with running_chain(PACED, num_engines=3) as chain:
        autoscaler = Autoscaler(chain)
        async with streaming(chain) as undisturbed:
            pass
        async with streaming(chain) as disturbed:
            autoscaler.order(Rung.PARKED, 0)
            await until(lambda: autoscaler.stands(0, Rung.PARKED))
            autoscaler.order(Rung.PARKED, 1)
            autoscaler.order(Rung.SERVING, 0)
            await until(lambda: autoscaler.stands(1, Rung.PARKED))
            await until(lambda: autoscaler.stands(0, Rung.SERVING))
        check_nothing_is_left(chain, chain.fronts)
        (demand,) = chain.gateway.demand_report().models
        assert chain.gateway.dispatchers[MODEL].num_waiting == 0
    assert [stream.error for stream in disturbed] == [None] * NUM_STREAMS
    assert [stream.num_tokens for stream in disturbed] == [NUM_TOKENS] * NUM_STREAMS
    assert [stream.text for stream in disturbed] == [stream.text for stream in undisturbed]
    assert (demand.num_arrived, demand.num_ended) == (2 * NUM_STREAMS, 2 * NUM_STREAMS)
    assert (demand.num_begun, demand.num_refused) == (2 * NUM_STREAMS, 0)
    assert demand.num_generated_tokens == 2 * NUM_STREAMS * NUM_TOKENS


async def test_a_request_wakes_a_fleet_that_sleeps() -> None:
    async with running_chain(PACED, num_engines=2) as chain:
        autoscaler = Autoscaler(chain)
        autoscaler.order(Rung.PARKED, 0, 1)
        await until(lambda: all(autoscaler.stands(number, Rung.PARKED) for number in (0, 1)))
        async with httpx.AsyncClient(base_url=chain.base_url, timeout=60) as client:
            body = {"model": MODEL, "prompt": "Good morning", "max_tokens": 3}
            asked = asyncio.create_task(client.post("/v1/completions", json=body))
            report = chain.gateway.demand_report
            await until(lambda: report().models[0].num_waiting == 1)
            autoscaler.order(Rung.SERVING, 1, next_ready_s=1.0)
            answer = await asked
        assert answer.status_code == 200
        assert autoscaler.stands(1, Rung.SERVING)
        assert autoscaler.stands(0, Rung.PARKED), "one was enough"


async def ask_with_one_beginning(chain: Chain) -> None:
    system = "Rules of the house: " + "be kind and brief. " * 60
    async with httpx.AsyncClient(base_url=chain.base_url, timeout=60) as client:
        for number in range(6):
            body = {"model": MODEL, "prompt": f"{system}{number}", "max_tokens": 2}
            assert (await client.post("/v1/completions", json=body)).status_code == 200


async def until_it_holds_the_hot_prefix(chain: Chain, number: int) -> None:
    fleet = chain.gateway.dispatchers[MODEL].fleet
    (hot,) = fleet.hottest_prefixes(next(iter(fleet)))
    keys = hot.index_keys
    await until(lambda: fleet.index.num_confirmed(f"{MODEL}/{number}", keys) == len(keys))


async def test_a_woken_engine_has_the_hot_prefix_before_it_counts() -> None:
    async with running_chain(PACED, num_engines=2) as chain:
        autoscaler = Autoscaler(chain)
        autoscaler.order(Rung.PARKED, 1)
        await until(lambda: autoscaler.stands(1, Rung.PARKED))
        await ask_with_one_beginning(chain)
        autoscaler.order(Rung.SERVING, 1)
        await until(lambda: autoscaler.seen(1).is_seeded and autoscaler.stands(1, Rung.SERVING))
        await until_it_holds_the_hot_prefix(chain, 1)
        assert chain.gateway.dispatchers[MODEL].seeder.num_seeded == 1
        check_nothing_is_left(chain, chain.fronts)


async def test_the_hot_prefix_of_an_engine_that_leaves_lives_on() -> None:
    async with running_chain(PACED, num_engines=2) as chain:
        await ask_with_one_beginning(chain)
        fleet = chain.gateway.dispatchers[MODEL].fleet
        (hot,) = fleet.hottest_prefixes(next(iter(fleet)))
        held = [fleet.index.num_confirmed(f"{MODEL}/{n}", hot.index_keys) for n in (0, 1)]
        holder = held.index(len(hot.index_keys))
        other = 1 - holder
        assert held[other] == 0, "it went where the prefix is"
        await chain.fronts[holder].drain()
        await until_it_holds_the_hot_prefix(chain, other)
