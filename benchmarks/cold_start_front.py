"""An engine's front in this process, and the least of a gateway that asks it for one token.

Must not know where its weights came from, nor what is measured.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from benchmarks.result import ResultError
from cache_tiers.keys import BlockKey, block_keys
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import Stage
from engine.config import EngineSpec
from engine.front import EngineFront
from engine.messages import (
    Demand,
    EngineMessage,
    EngineRequest,
    GatewayMessage,
    Grant,
    ModelCard,
    SamplingParams,
    StepFrame,
    Submit,
)
from engine.rung_messages import RungOrder, RungState
from wire.connection import Connection, connect

_HOST = "127.0.0.1"
_SECRET = secrets.token_bytes(32)
_TIMEOUT_S = 120.0
_PROMPT = tuple(range(5, 21))


class StartedEngine:
    """One that listens, and a connection to it."""

    def __init__(self, front: EngineFront, connection: Connection) -> None:
        self._front = front
        self._connection = connection
        self._card: ModelCard | None = None
        self._num_credits = 0
        self._num_requests = 0
        self._num_orders = 0
        self._rung = RungState(Rung.SERVING)
        self._answered: set[str] = set()

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Of its start."""
        return self._front.start_stages

    async def first_token(self) -> None:
        """Ask for one, as soon as it may be asked, and wait for it."""
        self._num_requests += 1
        request_id = f"first-token-{self._num_requests}"
        self._send(Demand((0, 1, 0)))
        await self._until(lambda: self._num_credits > 0)
        self._num_credits -= 1
        self._send(Submit(self._request(request_id)))
        await self._until(lambda: request_id in self._answered)

    async def go_to(self, rung: Rung) -> None:
        self.order(rung)
        await self._until(lambda: self._rung.rung is rung and not self._rung.is_moving)

    def order(self, rung: Rung) -> None:
        self._num_orders += 1
        self._send(RungOrder(rung, 1, self._num_orders))

    def _request(self, request_id: str) -> EngineRequest:
        assert self._card is not None
        root = BlockKey(self._card.root_key)
        prompt = list(_PROMPT)
        keys: list[bytes] = [*block_keys(root, prompt, self._card.block_size_tokens)]
        sampling = SamplingParams(max_tokens=1, temperature=0)
        return EngineRequest(request_id, prompt, root, keys, sampling, timeout_s=_TIMEOUT_S)

    def _send(self, message: GatewayMessage) -> None:
        self._connection.send(msgspec.msgpack.encode(message))

    async def _until(self, is_met: Callable[[], bool]) -> None:
        async with asyncio.timeout(_TIMEOUT_S):
            while not is_met():
                content = await self._connection.receive()
                self._take(msgspec.msgpack.decode(content, type=EngineMessage))

    def _take(self, message: EngineMessage) -> None:
        match message:
            case ModelCard():
                self._card = message
            case Grant():
                self._num_credits += message.num_credits
            case RungState():
                self._rung = message
            case StepFrame():
                for delta in message.deltas:
                    if delta.error is not None:
                        raise ResultError(f"the engine refuses a request: {delta.error}")
                    self._answered.add(delta.request_id)


@asynccontextmanager
async def started_engine(spec: EngineSpec, unix_dir: Path) -> AsyncIterator[StartedEngine]:
    """Raises ``EngineError`` if it doesn't start."""
    front = EngineFront(
        spec, engine_id="benchmark/1", secret=_SECRET, host=_HOST, unix_dir=unix_dir
    )
    try:
        endpoint = await front.start()
        connection = await connect(endpoint, secret=_SECRET)
        try:
            yield StartedEngine(front, connection)
        finally:
            connection.close("the benchmark is over")
    finally:
        await front.close()
