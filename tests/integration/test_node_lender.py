"""What other nodes get, over TCP, from a node and its engines."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cache_tiers.arena import Arena
from cache_tiers.block_image import BlockImage
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Export, Exported, PeerAddress
from cache_tiers.node_lender import NodeLender
from cache_tiers.node_service import NodeService
from cache_tiers.peer_server import PeerServer
from cache_tiers.peer_tier import PeerTier
from cache_tiers.tier import Tier, TierError
from tests.integration.node_engines import NodeEngine, content, eventually, node_engine, random_keys
from tests.unit.cache_tiers.fake_image_store import LAYOUT, FakeImageStore

pytestmark = pytest.mark.integration

EXPORT_TIMEOUT_S = 0.2


def no_peers(address: PeerAddress) -> Tier:
    raise TierError("there are no other nodes")


@dataclass(frozen=True, slots=True)
class LendingNode:
    socket_path: Path
    store: FakeImageStore
    lender: NodeLender
    peer: PeerTier
    """Another node's view of it."""


@pytest.fixture
async def node() -> AsyncIterator[LendingNode]:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:
        socket_path = Path(folder) / "node.sock"
        arena = Arena(16 * 1024**2)
        store = FakeImageStore(arena)
        service = NodeService(store, arena, socket_path, no_peers)
        await service.start()
        lender = NodeLender(store, service, EXPORT_TIMEOUT_S)
        server = PeerServer(lender, "127.0.0.1", b"the secret of this node")
        await server.start()
        peer = PeerTier(server.address)
        yield LendingNode(socket_path, store, lender, peer)
        await peer.close()
        await server.close()
        await service.close()
        assert not store.leases
        arena.close()


async def load(peer: PeerTier, keys: list[BlockKey]) -> list[bytes | None]:
    """The images' data; None for those that the peer does not have."""
    memories = [memoryview(bytearray(LAYOUT.image_bytes)) for _ in keys]
    images = [BlockImage(LAYOUT, m, k, 16) for m, k in zip(memories, keys, strict=True)]
    are_there = await peer.load(images)
    return [
        bytes(image.shard(0)) if is_there else None
        for image, is_there in zip(images, are_there, strict=True)
    ]


async def answer_export(engine: NodeEngine, keys: list[BlockKey]) -> list[bytes]:
    """What was asked for, after ``keys`` have been stored."""
    asked = await engine.receive(Export)
    engine.store(keys)
    engine.send(Exported(asked.export_id))
    return asked.keys


async def test_what_only_an_accelerator_holds_is_lent_after_an_export(node: LendingNode) -> None:
    keys = random_keys(4)
    async with node_engine(node.socket_path, LAYOUT) as engine:
        await engine.wait_for_slots(8)
        engine.store(keys[:2])
        await eventually(lambda: len(node.store.images) == 2)
        exporting = asyncio.create_task(answer_export(engine, keys[2:3]))
        loaded = await load(node.peer, keys)
        assert await exporting == keys[2:]
        expected = [content(key, 0, LAYOUT.shard_bytes) for key in keys[:3]]
        assert loaded == [*expected, None]


async def test_what_the_node_holds_costs_engines_nothing(node: LendingNode) -> None:
    keys = random_keys(2)
    async with node_engine(node.socket_path, LAYOUT) as engine:
        await engine.wait_for_slots(2)
        engine.store(keys)
        await eventually(lambda: len(node.store.images) == 2)
        assert None not in await load(node.peer, keys)
        engine.poll()
        assert not [message for message in engine.unread if isinstance(message, Export)]


async def test_an_engine_that_does_not_answer_is_waited_for_briefly(node: LendingNode) -> None:
    keys = random_keys(2)
    async with node_engine(node.socket_path, LAYOUT) as engine:
        await engine.wait_for_slots(2)
        engine.store(keys[:1])
        loop = asyncio.get_running_loop()
        start_s = loop.time()
        loaded = await load(node.peer, keys)
        assert loaded == [content(keys[0], 0, LAYOUT.shard_bytes), None]
        assert EXPORT_TIMEOUT_S <= loop.time() - start_s < EXPORT_TIMEOUT_S + 1
        asked = await engine.receive(Export)
        engine.send(Exported(asked.export_id))  # too late, and no offence
        assert await load(node.peer, keys[:1]) == loaded[:1]


async def test_a_layout_of_which_no_engine_came_is_not_held(node: LendingNode) -> None:
    assert await load(node.peer, random_keys(2)) == [None, None]


async def test_a_peer_that_gives_up_while_engines_are_asked_borrows_nothing(
    node: LendingNode,
) -> None:
    keys = random_keys(2)
    async with node_engine(node.socket_path, LAYOUT) as engine:
        await engine.wait_for_slots(1)
        engine.store(keys[:1])
        await eventually(lambda: len(node.store.images) == 1)
        lending = asyncio.create_task(node.lender.lend(LAYOUT.fingerprint, keys))
        await engine.receive(Export)
        assert node.store.leases.total() == 1
        lending.cancel()
        await asyncio.wait([lending])
        assert lending.cancelled()
        assert node.store.leases.total() == 0
