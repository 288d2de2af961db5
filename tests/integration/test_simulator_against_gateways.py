"""The simulator beside production gateways: dispatchers with their queues and credits in front of
eight real engines that only take time, in virtual time too, asked the same.
"""

import asyncio
from dataclasses import dataclass, field
from statistics import fmean

import pytest

from app.errors import ApiError
from app.queue import Job
from app.text.tokenization import Prompt
from engine.messages import SamplingParams, TokenDelta
from engine.performance_profile import StepCost
from simulator.fleet import FleetSpec, simulate
from simulator.outcome import Outcome
from simulator.performance import LinearModel
from simulator.replica_spec import ReplicaSpec
from simulator.synthetic import chat
from simulator.workload import SimulatedRequest, Workload
from tests.unit.app.routing.fleet_simulation import ENGINE, FleetSimulation
from tests.unit.app.routing.simulated_engine import BLOCK_SIZE_TOKENS, ROOT_KEY
from tests.unit.app.routing.virtual_time import run_in_virtual_time

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

NUM_ENGINES = 8
NUM_BLOCKS = 3000


@dataclass(frozen=True, slots=True)
class Served:
    """One request of the gateways."""

    ttft_s: float
    tpot_s: float
    num_cached_tokens: int


def make_workload() -> Workload:
    """Chats that come in a short time; sessions don't wait for answers, so that both are asked the
    same at the same time.
    """
    made = chat(
        num_sessions=60,
        sessions_per_s=12.0,
        num_turns=3,
        num_system_tokens=600,
        num_user_tokens=800,
        num_answer_tokens=30,
        max_history_tokens=1500,
        think_s=2.0,
        block_size_tokens=BLOCK_SIZE_TOKENS,
        seed=4,
    )
    ends_s: dict[str | None, float] = {}
    requests = []
    for request in made.requests:
        arrival_s = ends_s.get(request.session, request.arrival_s) + (request.think_s or 0.0)
        ends_s[request.session] = arrival_s + 1.0
        requests.append(
            SimulatedRequest(
                request.request_id,
                arrival_s,
                request.num_prompt_tokens,
                request.num_answer_tokens,
                request.block_keys,
            )
        )
    requests.sort(key=lambda request: request.arrival_s)
    return Workload("chat", BLOCK_SIZE_TOKENS, tuple(requests))


def make_prompt(request: SimulatedRequest) -> Prompt:
    """Tokens that agree with the keys: engines notice if others share them."""
    token_ids = [int.from_bytes(key[:2]) % 1000 for key in request.block_keys for _ in range(16)]
    number = sum(request.request_id.encode())
    token_ids += [number % 1000] * (request.num_prompt_tokens - len(token_ids))
    return Prompt(token_ids, ROOT_KEY, list(request.block_keys), ROOT_KEY)


@dataclass(eq=False)
class _Answer:
    """Hears when it begins and ends."""

    arrived_s: float
    num_tokens: int
    served: list[Served]
    can_restart = False
    is_missing_text = True
    first_s: float = 0.0
    num_cached_tokens: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def restart(self) -> None:
        raise AssertionError("no engine is lost")

    def fail(self, error: ApiError) -> None:
        raise error

    def on_delta(self, delta: TokenDelta) -> None:
        now_s = asyncio.get_running_loop().time()
        if not self.first_s:
            assert delta.usage is not None
            self.first_s, self.num_cached_tokens = now_s, delta.usage.cached_tokens
        if delta.finish_reason is not None:
            tpot_s = (now_s - self.first_s) / max(1, self.num_tokens - 1)
            self.served.append(
                Served(self.first_s - self.arrived_s, tpot_s, self.num_cached_tokens)
            )
            self.ended.set()


async def serve(workload: Workload) -> list[Served]:
    """By production gateways."""
    fleet = FleetSimulation(num_engines=NUM_ENGINES, num_blocks=NUM_BLOCKS)
    served: list[Served] = []

    async def ask(number: int, request: SimulatedRequest) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(request.arrival_s - loop.time())
        now_s = loop.time()
        answer = _Answer(now_s, request.num_answer_tokens, served)
        job = Job(
            request.request_id,
            make_prompt(request),
            SamplingParams(request.num_answer_tokens),
            answer,
            arrived_s=now_s,
            deadline_s=now_s + 600,
        )
        fleet.gateways[number % 2].enqueue(job)
        await answer.ended.wait()

    async with asyncio.TaskGroup() as group:
        for number, request in enumerate(workload.requests):
            group.create_task(ask(number, request))
    await fleet.close()
    return served


def simulated(workload: Workload) -> Outcome:
    paced = ENGINE.paced
    cost = StepCost(
        paced.step_base_s,
        paced.per_prefill_token_s,
        paced.per_decode_s,
        paced.per_context_token_s,
        paced.per_attended_token_s,
    )
    replica = ReplicaSpec(LinearModel(cost), NUM_BLOCKS * BLOCK_SIZE_TOKENS, config=ENGINE)
    return simulate(workload, FleetSpec(NUM_ENGINES, replica, num_gateways=2))


def test_a_fleet_of_paced_replicas_is_predicted() -> None:
    workload = make_workload()
    served = run_in_virtual_time(serve(workload))
    outcome = simulated(workload)

    assert len(served) == len(outcome.requests) == len(workload)
    assert outcome.tpot_s is not None
    ttft_s = fmean(request.ttft_s for request in served)
    tpot_s = fmean(request.tpot_s for request in served if request.tpot_s > 0)
    hits = sum(request.num_cached_tokens for request in served)
    hit_rate = hits / sum(request.num_prompt_tokens for request in workload.requests)
    assert outcome.ttft_s.mean == pytest.approx(ttft_s, rel=0.15)
    assert outcome.tpot_s.mean == pytest.approx(tpot_s, rel=0.15)
    assert outcome.hit_rate == pytest.approx(hit_rate, abs=0.03)
