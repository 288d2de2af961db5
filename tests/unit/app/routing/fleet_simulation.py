"""Chat sessions over simulated engines and several gateways, in virtual time: what was predicted
of each request, and what the engines did.
"""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.config import GatewayConfig, PoolsConfig
from app.dispatch import Dispatcher
from app.errors import ApiError
from app.fleet import Fleet
from app.queue import Job, WaitingQueue
from app.routing.candidate import Policy
from app.routing.policy import choose
from app.text.tokenization import Prompt
from benchmarks.chat_workload import ChatTurn, ChatWorkload
from cache_tiers.keys import block_keys
from engine.config import EngineConfig, PacedConfig
from engine.messages import SamplingParams, ServiceClass, TokenDelta
from tests.unit.app.routing.simulated_engine import (
    BLOCK_SIZE_TOKENS,
    ROOT_KEY,
    VOCAB_SIZE,
    SimulatedEngine,
)

ENGINE = EngineConfig(
    runner="paced",
    max_num_seqs=64,
    max_num_batched_tokens=1024,
    # As a 70B model on eight H100s.
    paced=PacedConfig(step_base_s=0.025, per_decode_s=0.0001, per_prefill_token_s=0.0001),
)
ANSWERS_SHORTENED = 20
"""Answers are that much shorter than those that the history holds: routing sees no difference."""
THINK_S = 10.0

MAX_WAITING_FLOOD = 12
"""Per gateway: more would only take time to simulate."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request, as predicted when it was submitted and as it went."""

    num_prompt_tokens: int
    predicted_cached_tokens: int
    cached_tokens: int
    predicted_ttft_s: float
    ttft_s: float
    """Since it was submitted."""
    waited_s: float
    """Before that, in the gateway."""


@dataclass(eq=False)
class _Answer:
    can_restart = False
    is_missing_text = True
    first_s: float = 0.0
    num_cached_tokens: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def restart(self) -> None:
        raise AssertionError("no engine is lost")

    def on_delta(self, delta: TokenDelta) -> None:
        if not self.first_s:
            assert delta.usage is not None
            self.first_s = asyncio.get_running_loop().time()
            self.num_cached_tokens = delta.usage.cached_tokens
        if delta.finish_reason is not None:
            self.ended.set()

    def fail(self, error: ApiError) -> None:
        raise error


class FleetSimulation:
    """Engines, and a gateway of each rank; to be made in a ``VirtualTimeLoop``."""

    def __init__(
        self,
        *,
        num_engines: int = 8,
        ranks: Sequence[int] = (0, 1),
        num_blocks: int,
        policy: Policy = choose,
        pools: PoolsConfig | None = None,
    ) -> None:
        self.engines = [
            SimulatedEngine(f"e{number}", ENGINE, num_blocks) for number in range(num_engines)
        ]
        self.gateways = [self.add_gateway(policy, rank=rank, pools=pools) for rank in ranks]
        self.outcomes: list[Outcome] = []
        self._token_of: dict[str, int] = {}
        self._num_requests = 0

    def add_gateway(
        self, policy: Policy = choose, *, rank: int = 0, pools: PoolsConfig | None = None
    ) -> Dispatcher:
        """One that has just started."""
        config = GatewayConfig(
            max_queue_len=10_000, max_queue_wait_s=600, pools=pools or PoolsConfig()
        )
        clock = asyncio.get_running_loop().time
        gateway = Dispatcher("m", config, clock=clock, policy=policy, first_rotation=0, rank=rank)
        for engine in self.engines:
            client = engine.connect(gateway.engines)
            gateway.engines.add(client)
            client.hear_all()
        return gateway

    async def run(
        self, workload: ChatWorkload, *, num_sessions: int, sessions_per_s: float
    ) -> None:
        """Sessions begin at random; each turn goes through any gateway."""
        draw = random.Random(workload.seed)
        async with asyncio.TaskGroup() as group:
            for number in range(num_sessions):
                group.create_task(self._chat(workload.session("run", number), draw))
                await asyncio.sleep(draw.expovariate(sessions_per_s))

    async def close(self) -> None:
        await asyncio.gather(*(gateway.close() for gateway in self.gateways))

    def prompt(self, turn: ChatTurn) -> Prompt:
        """A token per word, and one at each message's begin."""
        token_ids = [
            self._token_of.setdefault(word, len(self._token_of))
            for message in turn.messages
            for word in (f"<{message['role']}>", *message["content"].split())
        ]
        keys = list[bytes](block_keys(ROOT_KEY, token_ids, BLOCK_SIZE_TOKENS))
        return Prompt(token_ids, ROOT_KEY, keys, ROOT_KEY)

    def job(
        self,
        prompt: Prompt,
        num_tokens: int = 1,
        service_class: ServiceClass = ServiceClass.INTERACTIVE,
    ) -> Job:
        now_s = asyncio.get_running_loop().time()
        self._num_requests += 1
        return Job(
            f"r{self._num_requests}",
            prompt,
            SamplingParams(max_tokens=num_tokens),
            _Answer(),
            arrived_s=now_s,
            deadline_s=now_s + 600,
            service_class=service_class,
        )

    def choice(self, fleet: Fleet, job: Job) -> str:
        member = fleet.choose(job, WaitingQueue())
        assert member is not None
        return member.engine_id

    def num_cached_keys(self, number: int) -> int:
        return len(self.engines[number].mirror)

    async def flood(self, *, per_s: float, until: asyncio.Event, num_tokens: int = 1500) -> None:
        """Batch requests with prompts of their own, as long as few enough wait already."""
        draw = random.Random(1)
        async with asyncio.TaskGroup() as group:
            while not until.is_set():
                gateway = draw.choice(self.gateways)
                if gateway.num_waiting < MAX_WAITING_FLOOD:
                    token_ids = [draw.randrange(VOCAB_SIZE) for _ in range(num_tokens)]
                    keys = list[bytes](block_keys(ROOT_KEY, token_ids, BLOCK_SIZE_TOKENS))
                    job = self.job(
                        Prompt(token_ids, ROOT_KEY, keys, ROOT_KEY), 20, ServiceClass.BATCH
                    )
                    group.create_task(self._submit(gateway, job))
                await asyncio.sleep(draw.expovariate(per_s))

    async def _chat(self, turns: Iterable[ChatTurn], draw: random.Random) -> None:
        for turn in turns:
            num_tokens = max(1, turn.answer_tokens // ANSWERS_SHORTENED)
            await self._ask(draw.choice(self.gateways), self.prompt(turn), num_tokens)
            await asyncio.sleep(draw.expovariate(1 / THINK_S))

    async def _submit(self, gateway: Dispatcher, job: Job) -> _Answer:
        """Until it ended."""
        answer = job.answer
        assert isinstance(answer, _Answer)
        gateway.enqueue(job)
        await answer.ended.wait()
        return answer

    async def _ask(self, gateway: Dispatcher, prompt: Prompt, num_tokens: int) -> None:
        job = self.job(prompt, num_tokens)
        answer = await self._submit(gateway, job)
        assert job.predicted_cached_tokens is not None
        assert job.predicted_ttft_s is not None
        assert job.submitted_s is not None
        self.outcomes.append(
            Outcome(
                len(prompt.token_ids),
                job.predicted_cached_tokens,
                answer.num_cached_tokens,
                job.predicted_ttft_s,
                answer.first_s - job.submitted_s,
                job.submitted_s - job.arrived_s,
            )
        )
