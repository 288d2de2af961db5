"""Chat traffic over eight real engines with paced runners and two gateways, in virtual time."""

import random

import pytest

from app.routing.policy import POLICIES, PolicyName
from benchmarks.chat_workload import ChatWorkload
from engine.messages import CacheEvents
from tests.unit.app.routing.fleet_simulation import FleetSimulation
from tests.unit.app.routing.virtual_time import run_in_virtual_time

CHAT = ChatWorkload(seed=1)
ROOMY_BLOCKS = 8000
"""Everything stays cached."""
SMALL_BLOCKS = 1200
"""Six prompts: a conversation's own part is often gone when its next turn comes."""


@pytest.mark.parametrize(
    ("policy", "num_blocks"),
    [("least_ttft", ROOMY_BLOCKS), ("least_ttft", SMALL_BLOCKS), ("power_of_two", SMALL_BLOCKS)],
)
def test_predicted_hits_are_the_engines(num_blocks: int, policy: PolicyName) -> None:
    async def chat() -> FleetSimulation:
        simulation = FleetSimulation(num_blocks=num_blocks, policy=POLICIES[policy])
        await simulation.run(CHAT, num_sessions=8, sessions_per_s=4.0)
        await simulation.close()
        return simulation

    simulation = run_in_virtual_time(chat())
    outcomes = simulation.outcomes
    predicted = sum(outcome.predicted_cached_tokens for outcome in outcomes)
    actual = sum(outcome.cached_tokens for outcome in outcomes)
    num_prompt_tokens = sum(outcome.num_prompt_tokens for outcome in outcomes)
    assert 2500 < num_prompt_tokens / len(outcomes) < 3500
    assert 0.3 < actual / num_prompt_tokens < 0.95
    assert predicted == pytest.approx(actual, rel=0.02)
    clients = [client for engine in simulation.engines for client in engine.clients]
    assert sum(client.num_snapshots for client in clients) == 0, "a needless snapshot"


def test_a_fresh_gateway_decides_like_an_old_one() -> None:
    """Once nothing is on its way: what the old one knows more is what it has just sent."""

    async def chat() -> None:
        simulation = FleetSimulation(num_blocks=ROOMY_BLOCKS)
        await simulation.run(CHAT, num_sessions=8, sessions_per_s=4.0)
        old, fresh = simulation.gateways[0].fleet, simulation.add_gateway().fleet
        assert len(fresh.index) > 100
        turns = [turn for number in range(8) for turn in CHAT.session("run", number)]
        prompts = [simulation.prompt(turn) for turn in turns]
        prompts += [simulation.prompt(turn) for turn in CHAT.session("another", 0)]
        jobs = [simulation.job(prompt) for prompt in prompts]
        assert [simulation.choice(old, job) for job in jobs] == [
            simulation.choice(fresh, job) for job in jobs
        ]
        assert len({simulation.choice(fresh, job) for job in jobs}) > 2
        await simulation.close()

    run_in_virtual_time(chat())


def test_lost_events_cost_one_snapshot_and_then_the_index_is_right_again() -> None:
    async def chat() -> None:
        simulation = FleetSimulation(num_blocks=SMALL_BLOCKS)
        simulation.engines[3].num_lost_events = 2
        await simulation.run(CHAT, num_sessions=8, sessions_per_s=4.0)
        asked = [[client.num_snapshots for client in e.clients] for e in simulation.engines]
        assert asked == [[int(number == 3)] * 2 for number in range(8)]
        check_indices(simulation)
        await simulation.close()

    run_in_virtual_time(chat())


def test_a_replica_that_died_leaves_nothing_behind() -> None:
    async def chat() -> None:
        simulation = FleetSimulation(num_blocks=SMALL_BLOCKS)
        await simulation.run(CHAT, num_sessions=8, sessions_per_s=4.0)
        dead = simulation.engines.pop(max(range(8), key=simulation.num_cached_keys))
        keys = [key for part in dead.mirror.snapshot() for key in part.keys]
        for gateway, client in zip(simulation.gateways, dead.clients, strict=True):
            gateway.engines.on_closed(client, "it died")
            gateway.engines.on_step(client, CacheEvents(10**6, keys, []))  # its last words
            assert all(dead.engine_id not in gateway.fleet.index.match([key]) for key in keys)
            gateway.fleet.index.check_integrity()
        check_indices(simulation)
        await simulation.close()

    run_in_virtual_time(chat())


def check_indices(simulation: FleetSimulation) -> None:
    """Every gateway knows of every key where it is, and where it is not."""
    truth = {
        engine.engine_id: {key for part in engine.mirror.snapshot() for key in part.keys}
        for engine in simulation.engines
    }
    keys = sorted(set().union(*truth.values()))
    random.Random(0).shuffle(keys)
    for gateway in simulation.gateways:
        for key in keys:
            holders = {engine_id for engine_id, held in truth.items() if key in held}
            assert set(gateway.fleet.index.match([key])) == holders
