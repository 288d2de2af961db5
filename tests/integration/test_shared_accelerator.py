"""Two models whose engines share one accelerator: production plans let them take turns."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count

import msgspec
import pytest

from app.autoscaling_messages import DemandReport, ScaleOrders
from autoscaler.config import AutoscalerConfig, CapacityConfig, ModelScalingConfig
from autoscaler.observation import ServeObservation
from autoscaler.policy import PlannerState, decide
from cache_tiers.rung import Rung
from deployments.autoscaling_loop import orders_of
from deployments.demand_reports import DemandReports
from engine.config import PacedConfig
from tests.integration.chain import Chain, running_chain
from tests.integration.test_fleet_changes import (
    NUM_STREAMS,
    NUM_TOKENS,
    PACED,
    Stream,
    streaming,
    until,
)
from tests.quickstart import MODEL

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HASTY = PACED.model_copy(
    update={
        "hand_over_after_s": 0.3,
        "paced": PacedConfig(step_base_s=0.02, per_decode_s=0.0, per_prefill_token_s=0.0001),
    }
)
CONFIG = AutoscalerConfig(
    models=tuple(
        ModelScalingConfig(name=name, min_replicas=0, capacity=CapacityConfig(requests_per_s=2.0))
        for name in "ab"
    ),
    devices_per_node=1,
)
ROUND_S = 0.1
HURRY = 100.0
"""The planner's seconds in one of ours."""
SERVE = ServeObservation(1, 1, 0, 1)


def renamed(report: DemandReport, name: str) -> DemandReport:
    """Both gateways offer the one model that tests have."""
    (model,) = report.models
    engines = tuple(
        msgspec.structs.replace(each, engine_id=each.engine_id.replace(MODEL, name))
        for each in model.engines
    )
    model = msgspec.structs.replace(model, model=name, engines=engines)
    return msgspec.structs.replace(report, gateway_id=name, models=(model,))


async def plan(chains: dict[str, Chain]) -> None:
    reports, state = DemandReports(), PlannerState.new(1)
    for number in count():
        seen = [renamed(chain.gateway.demand_report(), name) for name, chain in chains.items()]
        now_s = number * ROUND_S * HURRY
        observation = reports.observe(
            seen, dict.fromkeys(chains, SERVE), CONFIG, now_s=now_s, local_s=now_s
        )
        orders = orders_of(decide(observation, state, CONFIG).plan, now_s)
        for model in orders.models:
            rungs = {each.replace(model.model, MODEL): rung for each, rung in model.rungs.items()}
            own = msgspec.structs.replace(model, model=MODEL, rungs=rungs)
            chains[model.model].gateway.take_orders(
                ScaleOrders(orders.epoch, orders.sequence, (own,))
            )
        await asyncio.sleep(ROUND_S)


def num_up(chains: dict[str, Chain]) -> int:
    rungs = [chain.fronts[0].rung for chain in chains.values()]
    return sum(each.rung is Rung.SERVING or each.is_moving for each in rungs)


async def watch(chains: dict[str, Chain]) -> None:
    """Raises when both take the accelerator."""
    while True:
        assert num_up(chains) <= 1
        await asyncio.sleep(0.002)


@asynccontextmanager
async def planned(chains: dict[str, Chain]) -> AsyncIterator[None]:
    """From when no more are awake than fit: both start awake."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(plan(chains))]
        await until(lambda: num_up(chains) == 1)
        running.append(tasks.create_task(watch(chains)))
        yield
        for task in running:
            task.cancel()


def check(streams: list[Stream]) -> None:
    assert [each.error for each in streams] == [None] * NUM_STREAMS
    assert [each.num_tokens for each in streams] == [NUM_TOKENS] * NUM_STREAMS


async def test_two_models_answer_in_turns_on_one_accelerator() -> None:
    async with running_chain(HASTY, num_engines=1) as a, running_chain(HASTY, num_engines=1) as b:
        chains = {"a": a, "b": b}
        async with planned(chains):
            for chain in (a, b, a):
                async with streaming(chain) as streams:
                    pass
                check(streams)
            async with streaming(a) as first, streaming(b) as second:
                pass
            check(first)
            check(second)
