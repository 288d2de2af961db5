"""A running front of a paced engine, and the least that a gateway does to it."""

import asyncio
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import numpy as np
from safetensors.numpy import save_file

from cache_tiers.keys import BlockKey, block_keys
from cache_tiers.rung import Rung
from engine.checkpoints.manifest import build_manifest, write_manifest
from engine.config import EngineConfig, EngineSpec, PacedConfig
from engine.front import MAX_GATEWAY_BACKLOG_BYTES, EngineFront
from engine.messages import (
    CacheEvents,
    CacheSnapshot,
    Demand,
    Draining,
    EngineMessage,
    EngineRequest,
    GatewayMessage,
    Grant,
    LoadView,
    ModelCard,
    Peers,
    Reply,
    SamplingParams,
    Submit,
    TokenDelta,
)
from engine.rank_group import MAX_SILENCE_S
from engine.rung_messages import RungOrder, RungState
from wire.connection import Connection, connect
from wire.endpoint import Endpoint
from wire.errors import ConnectionClosed
from wire.limits import Limits

SECRET = b"the secret of the cluster"
PACED = EngineConfig(runner="paced", max_num_seqs=8, paced=PacedConfig(step_base_s=0.004))
FOREVER = 10_000
"""More tokens than a test waits for."""


def write_paced_checkpoint(folder: Path) -> None:
    """The least that a paced engine needs of a model."""
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 500,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 20_000,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"model": {}}')
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    save_file({"weight": np.zeros(4, np.float32)}, folder / "model.safetensors")
    write_manifest(folder, build_manifest(folder, source="test", source_sha256="", source_stamp=""))


@asynccontextmanager
async def running(
    checkpoint: Path,
    unix_dir: Path | None = None,
    config: EngineConfig = PACED,
    *,
    max_silence_s: float = MAX_SILENCE_S,
    max_gateway_backlog_bytes: int = MAX_GATEWAY_BACKLOG_BYTES,
    node_cache_socket: Path | None = None,
    load_timeout_s: float = 2.0,
) -> AsyncIterator[tuple[EngineFront, Endpoint]]:
    front = EngineFront(
        EngineSpec(
            model="tiny",
            checkpoint=checkpoint,
            config=config,
            node_cache_socket=node_cache_socket,
            load_timeout_s=load_timeout_s,
        ),
        engine_id="tiny/1",
        secret=SECRET,
        host="127.0.0.1",
        unix_dir=unix_dir,
        max_silence_s=max_silence_s,
        max_gateway_backlog_bytes=max_gateway_backlog_bytes,
    )
    try:
        yield front, await front.start()
    finally:
        await front.close()


class Gateway:
    """The least that a gateway does: keeps what it is told."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.card: ModelCard | None = None
        self.load = LoadView()
        self.num_credits = 0
        self.num_gateways = 0
        self.is_draining = False
        self.rung = RungState(Rung.SERVING)
        self.rungs: list[RungState] = []
        """Told, in order."""
        self.stored: list[bytes] = []
        self.events: list[CacheEvents] = []
        self.snapshots: list[CacheSnapshot] = []
        self.replies: list[Reply] = []
        self.deltas: defaultdict[str, list[TokenDelta]] = defaultdict(list)

    def send(self, message: GatewayMessage) -> None:
        self.connection.send(msgspec.msgpack.encode(message))

    async def until(self, is_met: Callable[[], bool], timeout_s: float = 10) -> None:
        async with asyncio.timeout(timeout_s):
            while not is_met():
                self._take(
                    msgspec.msgpack.decode(await self.connection.receive(), type=EngineMessage)
                )

    def _take(self, message: EngineMessage) -> None:
        if isinstance(message, ModelCard):
            self.card = message
        elif isinstance(message, Grant):
            self.num_credits += message.num_credits
        elif isinstance(message, Peers):
            self.num_gateways = message.num_gateways
        elif isinstance(message, Draining):
            self.is_draining = True
        elif isinstance(message, RungState):
            self.rung = message
            self.rungs.append(message)
        elif isinstance(message, CacheSnapshot):
            self.snapshots.append(message)
        elif isinstance(message, Reply):
            self.replies.append(message)
        else:
            self.load = message.load
            if message.events is not None:
                self.events.append(message.events)
                self.stored += message.events.stored
            for delta in message.deltas:
                self.deltas[delta.request_id].append(delta)

    def order(self, rung: Rung, sequence: int, epoch: int = 1) -> None:
        self.send(RungOrder(rung, epoch, sequence))

    async def until_rung(self, rung: Rung, timeout_s: float = 20) -> None:
        """And it stands there."""
        await self.until(lambda: self.rung.rung is rung and not self.rung.is_moving, timeout_s)

    async def submit(self, request_id: str, max_tokens: int, prompt_len: int = 20) -> None:
        """Ask for a credit, wait for it, use it for a made-up prompt."""
        await self._submit(self.request(request_id, max_tokens, prompt_len))

    async def ask(
        self, request_id: str, prompt: list[int], stop_token_ids: tuple[int, ...]
    ) -> None:
        """The same with a real prompt."""
        sampling = SamplingParams(max_tokens=64, temperature=0, stop_token_ids=stop_token_ids)
        await self._submit(self._request(request_id, prompt, sampling))

    def request(self, request_id: str, max_tokens: int, prompt_len: int = 20) -> EngineRequest:
        prompt = [(len(request_id) + 7 * position) % 500 for position in range(prompt_len)]
        return self._request(
            request_id, prompt, SamplingParams(max_tokens=max_tokens, temperature=0)
        )

    def _request(
        self, request_id: str, prompt: list[int], sampling: SamplingParams
    ) -> EngineRequest:
        assert self.card is not None
        root = BlockKey(self.card.root_key)
        keys: list[bytes] = [*block_keys(root, prompt, self.card.block_size_tokens)]
        return EngineRequest(request_id, prompt, root, keys, sampling, timeout_s=60)

    async def _submit(self, request: EngineRequest) -> None:
        if self.num_credits == 0:
            self.send(Demand((0, 1, 0)))
            await self.until(lambda: self.num_credits > 0)
        self.num_credits -= 1
        self.send(Submit(request))

    async def started(self, request_id: str) -> None:
        await self.until(lambda: bool(self.deltas[request_id]))

    async def answer(self, request_id: str) -> tuple[list[int], TokenDelta]:
        """All tokens, and the last delta."""
        deltas = self.deltas[request_id]
        await self.until(lambda: bool(deltas) and deltas[-1].finish_reason is not None)
        return [token for delta in deltas for token in delta.token_ids], deltas[-1]

    async def reason_of_end(self) -> str:
        try:
            await self.until(lambda: False)
        except ConnectionClosed as closed:
            return closed.reason
        raise AssertionError("unreachable")


@asynccontextmanager
async def gateway_at(endpoint: Endpoint, limits: Limits | None = None) -> AsyncIterator[Gateway]:
    gateway = Gateway(await connect(endpoint, secret=SECRET, limits=limits))
    try:
        await gateway.until(lambda: gateway.card is not None)
        yield gateway
    finally:
        gateway.connection.close("the test is over")
        await gateway.connection.wait_closed()
