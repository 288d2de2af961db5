"""Traffic of several gateways, and of several classes, over simulated engines in virtual time."""

import asyncio
from collections.abc import Sequence
from statistics import fmean

from app.config import PoolConfig, PoolsConfig
from benchmarks.chat_workload import ChatWorkload
from tests.unit.app.routing.fleet_simulation import FleetSimulation, Outcome
from tests.unit.app.routing.virtual_time import run_in_virtual_time

ROOMY_BLOCKS = 8000
"""Everything stays cached."""


def ttfts_s(outcomes: list[Outcome]) -> list[float]:
    return sorted(outcome.waited_s + outcome.ttft_s for outcome in outcomes)


def test_gateways_that_see_the_same_do_not_all_send_to_the_same_engine() -> None:
    """A burst through four gateways is served nearly as well as through one that knows all, and
    better than if all had the same home.
    """

    async def ttfts_of_s(ranks: Sequence[int], seed: int) -> list[float]:
        simulation = FleetSimulation(ranks=ranks, num_blocks=ROOMY_BLOCKS)
        chat = ChatWorkload(seed=seed, num_turns=1)
        await simulation.run(chat, num_sessions=24, sessions_per_s=16.0)
        await simulation.close()
        return ttfts_s(simulation.outcomes)

    def mean_ttft_s(*ranks: int) -> float:
        runs = [run_in_virtual_time(ttfts_of_s(ranks, seed)) for seed in (1, 3)]
        return fmean(ttft_s for run in runs for ttft_s in run)

    apart = mean_ttft_s(0, 1, 2, 3)
    assert apart < 1.3 * mean_ttft_s(0)
    assert apart < 0.95 * mean_ttft_s(0, 0, 0, 0)


NUM_SESSIONS = 12


async def _flooded_ttfts_s(pools: PoolsConfig | None, batch_per_s: float) -> list[float]:
    simulation = FleetSimulation(num_engines=4, ranks=(0,), num_blocks=ROOMY_BLOCKS, pools=pools)
    are_done = asyncio.Event()
    flood = None
    if batch_per_s:
        flood = asyncio.create_task(simulation.flood(per_s=batch_per_s, until=are_done))
        await asyncio.sleep(1.0)
    chat = asyncio.create_task(
        simulation.run(
            ChatWorkload(seed=1, num_turns=1), num_sessions=NUM_SESSIONS, sessions_per_s=2.0
        )
    )
    while len(simulation.outcomes) < NUM_SESSIONS:  # noqa: ASYNC110 - nothing tells
        await asyncio.sleep(0.5)
    are_done.set()
    if flood is not None:
        await flood
    await chat
    await simulation.close()
    return ttfts_s(simulation.outcomes)


def test_ten_times_as_much_batch_work_hardly_moves_interactive_requests() -> None:
    """Of the p99 of time to first token, with a pool for batch work and without."""
    pools = PoolsConfig(batch=PoolConfig(replica_share=0.25))
    quiet = run_in_virtual_time(_flooded_ttfts_s(None, 0.0))[-1]
    apart = run_in_virtual_time(_flooded_ttfts_s(pools, 10.0))[-1]
    mixed = run_in_virtual_time(_flooded_ttfts_s(None, 10.0))[-1]
    assert apart <= 1.1 * quiet
    assert mixed > 1.3 * quiet, "without pools it must be seen, or this test shows nothing"
