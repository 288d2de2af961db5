"""The engine's side of a node cache's socket, for tests on an event loop."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.keys import BlockKey
from cache_tiers.messages import (
    EngineToNode,
    Fetch,
    NodeToEngine,
    Open,
    PeerAddress,
    RecomputeCost,
    Slots,
    Store,
    Stored,
)
from cache_tiers.node_client import Attachment, connect
from wire.errors import ConnectionClosed

Message = TypeVar("Message", bound=msgspec.Struct)
WAIT_S = 5.0


class NodeEngine:
    """Rank 0 of an engine that computes nothing."""

    def __init__(self, link: Attachment, layout: ImageLayout) -> None:
        self.link = link
        self.layout = layout
        self.slots: list[int] = []
        self.unread: list[NodeToEngine] = []
        self._num_fetches = 0

    def send(self, message: EngineToNode) -> None:
        self.link.pipe.send(msgspec.msgpack.encode(message))

    def poll(self) -> None:
        for frame in self.link.pipe.poll(0):
            message = msgspec.msgpack.decode(frame, type=NodeToEngine)
            if isinstance(message, Slots):
                self.slots += message.offsets
            else:
                self.unread.append(message)

    async def receive(self, kind: type[Message]) -> Message:
        """The next message of this kind; others stay unread."""
        async with asyncio.timeout(WAIT_S):
            while True:
                self.poll()
                for index, message in enumerate(self.unread):
                    if isinstance(message, kind):
                        del self.unread[index]
                        return message
                await asyncio.sleep(0.002)

    async def wait_for_slots(self, num: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.slots) < num:
                self.poll()
                await asyncio.sleep(0.002)

    async def wait_until_cut(self) -> str:
        """Why."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    self.poll()
                except ConnectionClosed as closed:
                    return closed.reason
                await asyncio.sleep(0.002)

    def image(self, offset: int, key: BlockKey) -> BlockImage:
        memory = self.link.arena.memory[offset : offset + self.layout.image_bytes]
        return BlockImage(self.layout, memory, key, self.layout.block_size_tokens)

    def write(self, offset: int, key: BlockKey) -> BlockImage:
        """A whole image of bytes that are made of its key."""
        image = self.image(offset, key)
        for rank in range(self.layout.num_shards):
            image.shard(rank)[:] = content(key, rank, self.layout.shard_bytes)
            image.seal_shard(rank)
        image.write_footer()
        return image

    def store(self, keys: Sequence[BlockKey], num_before: int = 0) -> None:
        """Write images of ``keys``, blocks of a prompt after its first ``num_before``, and say
        so.
        """
        stored: list[Stored] = []
        for chain_len, key in enumerate(keys, start=num_before + 1):
            offset = self.slots.pop()
            self.write(offset, key)
            stored.append(Stored(offset, key, self.layout.block_size_tokens, chain_len, 0.01))
        self.send(Store(stored))

    def fetch(
        self, keys: Sequence[BlockKey], num_held: int = 0, peer: PeerAddress | None = None
    ) -> int:
        """The fetch's id."""
        self._num_fetches += 1
        cost = RecomputeCost(step_s=0.01, step_tokens=2048, token_s=0.01)
        wanted: list[bytes] = list(keys)
        self.send(Fetch(self._num_fetches, wanted, num_held, [], cost, 2.0, peer))
        return self._num_fetches

    def close(self) -> None:
        self.link.pipe.close()
        self.link.arena.close()


async def eventually(is_so: Callable[[], bool]) -> None:
    """For what sets no event; raises ``TimeoutError``."""
    async with asyncio.timeout(WAIT_S):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def content(key: BlockKey, rank: int, num_bytes: int) -> bytes:
    pattern = key + bytes([rank])
    return (pattern * (num_bytes // len(pattern) + 1))[:num_bytes]


@asynccontextmanager
async def node_engine(
    socket_path: Path, layout: ImageLayout, rank: int = 0
) -> AsyncIterator[NodeEngine]:
    opening = Open(layout, rank, model="a-model", key_stride=8)
    engine = NodeEngine(await asyncio.to_thread(connect, socket_path, opening, WAIT_S), layout)
    try:
        if rank == 0:  # the first slots say that its session is there
            await engine.wait_for_slots(1)
        yield engine
    finally:
        engine.close()


def random_keys(num: int) -> list[BlockKey]:
    return [BlockKey(os.urandom(16)) for _ in range(num)]
