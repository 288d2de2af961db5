"""An engine replica in virtual time: the real engine, credits and cache mirror around a paced
runner, without process and channel.
"""

import asyncio

from app.client import QUERY_TIMEOUT_S, DeltaSink, EngineListener
from cache_tiers.keys import KeySalt, root_key
from cache_tiers.rung import Rung
from engine.cache_mirror import CacheMirror
from engine.config import EngineConfig
from engine.credits import CreditLedger
from engine.engine import Engine
from engine.kv_geometry import KvGeometry, KvGroup
from engine.messages import (
    CacheEvents,
    EngineRequest,
    LoadView,
    ModelCard,
    QueryKind,
    TokenDelta,
)
from engine.paced_runner import PacedRunner
from engine.rung_messages import RungOrder, RungState
from engine.step_output import StepOutput

BLOCK_SIZE_TOKENS = 16
MAX_LEN = 8192
VOCAB_SIZE = 1000
ROOT_KEY = root_key(KeySalt("simulated", "bfloat16", BLOCK_SIZE_TOKENS, ""))


class SimulatedEngine:
    """Steps as long as it has work; its clients hear of a step when the step ends."""

    def __init__(self, engine_id: str, config: EngineConfig, num_blocks: int) -> None:
        self.engine_id = engine_id
        self.mirror = CacheMirror()
        self.load = LoadView()
        self.clients: list[SimulatedClient] = []
        self.num_lost_events = 0
        """So many of the next events reach no client."""
        self._config = config
        self._now_s = 0.0
        runner = PacedRunner(
            config.paced,
            num_blocks=num_blocks,
            block_size_tokens=BLOCK_SIZE_TOKENS,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=[],
            sleep=self._sleep,
            clock=self._clock,
        )
        self._engine = Engine(
            config,
            geometry=KvGeometry((KvGroup((0,)),), 1, 1, BLOCK_SIZE_TOKENS, 2),
            num_blocks=num_blocks,
            max_model_len=MAX_LEN,
            vocab_size=VOCAB_SIZE,
            runner=runner,
            clock=self._clock,
        )
        self.ledger = CreditLedger(
            config.max_num_seqs + max(2, config.max_num_seqs // 16),
            ttft_budget_s=config.ttft_budget_s,
            step_budget_tokens=config.max_num_batched_tokens,
        )
        self._open: dict[str, tuple[int, EngineRequest]] = {}
        self._unstarted: set[str] = set()
        self._is_stepping = False
        self._num_untaken = 0

    @property
    def card(self) -> ModelCard:
        return ModelCard(
            engine_id=self.engine_id,
            model="m",
            weights_revision="r",
            root_key=ROOT_KEY,
            block_size_tokens=BLOCK_SIZE_TOKENS,
            max_model_len=MAX_LEN,
            max_request_tokens=MAX_LEN,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=[],
            tokenizer_json=b"",
            chat_template=None,
            bos_token=None,
            eos_token=None,
            created_s=0,
            max_num_seqs=self._config.max_num_seqs,
        )

    def connect(self, listener: EngineListener) -> "SimulatedClient":
        client = SimulatedClient(self, listener, source=len(self.clients))
        self.clients.append(client)
        self.ledger.set_demand(client.source, (0, 0, 0))
        return client

    def submit(self, source: int, request: EngineRequest) -> None:
        num_tokens = len(request.token_ids)
        self.ledger.submitted(source, num_tokens, 1, request.service_class)
        self._open[request.request_id] = (source, request)
        self._unstarted.add(request.request_id)
        self._engine.add(request)
        self._num_untaken += 1
        if not self._is_stepping:
            self._is_stepping = True
            asyncio.get_running_loop().call_soon(self._step)

    def grant(self) -> None:
        for source, num_credits in self.ledger.grants(self.load).items():
            self.clients[source].hear_grant(num_credits)

    def _step(self) -> None:
        loop = asyncio.get_running_loop()
        self._now_s = loop.time()
        num_taken, self._num_untaken = self._num_untaken, 0
        output = self._engine.step()
        loop.call_at(self._now_s, self._deliver, output, num_taken)

    def _deliver(self, output: StepOutput, num_taken: int) -> None:
        self.load = output.load
        if output.events is not None:
            self.mirror.apply(output.events)
        self.ledger.taken(num_taken)
        for delta in output.deltas:
            self._count(delta)
        events = output.events
        if events is not None and self.num_lost_events:
            self.num_lost_events -= 1
            events = None
        for client in self.clients:
            client.hear_step(output, events)
        self.grant()
        if self._engine.has_work:
            self._step()
        else:
            self._is_stepping = False

    def _count(self, delta: TokenDelta) -> None:
        """Every request has one sample, and its first delta a token."""
        source, request = self._open[delta.request_id]
        if delta.request_id in self._unstarted:
            self._unstarted.remove(delta.request_id)
            self.ledger.started(request.service_class, len(request.token_ids))
        if delta.finish_reason is not None:
            self.ledger.finished(source, 1, request.service_class)
            del self._open[delta.request_id]

    def _clock(self) -> float:
        return self._now_s

    def _sleep(self, duration_s: float) -> None:
        self._now_s += duration_s


class SimulatedClient:
    """``EngineClient`` of one gateway."""

    def __init__(self, engine: SimulatedEngine, listener: EngineListener, source: int) -> None:
        self.card = engine.card
        self.load = LoadView()
        self.num_credits = 0
        self.is_accepting = True
        self.is_draining = False
        self.rung_state = RungState(Rung.SERVING)
        self.source = source
        self.num_snapshots = 0
        """That were asked for."""
        self._engine = engine
        self._listener = listener
        self._sinks: dict[str, DeltaSink] = {}

    @property
    def num_gateways(self) -> int:
        return len(self._engine.clients)

    def hear_all(self) -> None:
        """What an engine says first."""
        for part in self._engine.mirror.snapshot():
            self._listener.on_snapshot(self, part)
        self.load = self._engine.load
        self._listener.on_step(self, None)

    def hear_grant(self, num_credits: int) -> None:
        self.num_credits += num_credits
        self._listener.on_credits(self)

    def hear_step(self, output: StepOutput, events: CacheEvents | None) -> None:
        self.load = output.load
        for delta in output.deltas:
            sink = self._sinks.get(delta.request_id)
            if sink is not None:
                if delta.finish_reason is not None:
                    del self._sinks[delta.request_id]
                sink(delta)
        self._listener.on_step(self, events)

    def set_demand(self, num_waiting: tuple[int, int, int]) -> None:
        self._engine.ledger.set_demand(self.source, num_waiting)
        if not any(num_waiting) and self.num_credits:
            self._engine.ledger.returned(self.source, self.num_credits)
            self.num_credits = 0
        asyncio.get_running_loop().call_soon(self._engine.grant)

    def submit(self, request: EngineRequest, sink: DeltaSink) -> None:
        self.num_credits -= 1
        self._sinks[request.request_id] = sink
        self._engine.submit(self.source, request)

    def abort(
        self, request_id: str, num_kept_tokens: int | None = None, index: int | None = None
    ) -> None:
        raise NotImplementedError("nobody aborts in a simulation")

    def request_snapshot(self) -> None:
        self.num_snapshots += 1
        asyncio.get_running_loop().call_soon(self.hear_all)

    def set_rung(self, order: RungOrder) -> None:
        raise NotImplementedError("nobody sleeps in a simulation")

    def set_successor(self, *, exists: bool) -> None:
        """Nobody leaves."""

    async def query(
        self, kind: QueryKind, argument: str, timeout_s: float = QUERY_TIMEOUT_S
    ) -> bytes | None:
        return None

    async def close(self) -> None:
        self.is_accepting = False
        self._listener.on_closed(self, "closed by the gateway")
