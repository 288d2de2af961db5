"""Whole node caches, each in its process, with real tiers."""

import asyncio
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_tiers.block_image import ImageLayout
from cache_tiers.config import DiskConfig, NodeCacheConfig
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Fetched, Loaded, MediaEvents, Open
from cache_tiers.node_client import connect
from cache_tiers.tier import TierError, TierKind
from tests.integration.node_engines import NodeEngine, node_engine, random_keys
from tests.integration.node_processes import SOURCE_ROOT, node_process

pytestmark = pytest.mark.integration

MIB = 1024**2
LAYOUT = ImageLayout(b"p" * 16, num_shards=1, shard_bytes=MIB // 4, block_size_tokens=16)
CONFIG = NodeCacheConfig(host_bytes=64 * MIB)
NUM_IN_ARENA = 8 * 31
"""Images: of each slab of eight megabytes the footers take one's place."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:  # short: socket paths are limited
        yield Path(folder)


async def store_all(engine: NodeEngine, keys: list[BlockKey]) -> None:
    """One after the other, since a small arena grants few slots."""
    for num_before, key in enumerate(keys):
        await engine.wait_for_slots(1)
        engine.store([key], num_before)


async def until_stored(engine: NodeEngine, kind: TierKind, key: BlockKey) -> None:
    while True:
        events = await engine.receive(MediaEvents)
        if events.kind is kind and key in events.stored:
            return


async def load(engine: NodeEngine, keys: list[BlockKey]) -> list[TierKind]:
    """Where those were that came, all of them sound."""
    fetch_id = engine.fetch(keys)
    fetched = await engine.receive(Fetched)
    assert fetched.fetch_id == fetch_id
    for found, key in zip(fetched.images, keys, strict=False):
        assert found.key == key
        assert engine.image(found.offset, key).is_sound()
    engine.send(Loaded(fetch_id, len(fetched.images), load_s=0.001))
    return [found.kind for found in fetched.images]


async def test_blocks_come_back_from_memory(folder: Path) -> None:
    keys = random_keys(9)
    async with node_process(folder, CONFIG) as node:
        async with node_engine(node.socket_path, LAYOUT) as writer:
            await store_all(writer, keys)
        async with node_engine(node.socket_path, LAYOUT) as reader:
            events = await reader.receive(MediaEvents)
            assert events == MediaEvents(TierKind.HOST, stored=[keys[7]], evicted=[])
            assert await load(reader, keys) == [TierKind.HOST] * 9
    assert node.process.returncode == 0
    assert not node.socket_path.exists()


async def test_what_an_engine_has_mapped_survives_kill_9_of_the_node(folder: Path) -> None:
    async with (
        node_process(folder, CONFIG) as node,
        node_engine(node.socket_path, LAYOUT) as engine,
    ):
        await engine.wait_for_slots(1)
        [key] = random_keys(1)
        image = engine.write(engine.slots[0], key)
        await node.kill()
        assert "closed" in await engine.wait_until_cut()
        assert image.is_sound()
        del image
        with pytest.raises(TierError, match="no node cache"):
            connect(node.socket_path, Open(LAYOUT, 0, "a-model", 8), 1.0)
    async with (
        node_process(folder, CONFIG) as node,
        node_engine(node.socket_path, LAYOUT) as engine,
    ):
        await engine.wait_for_slots(1)


async def test_disks_are_warm_after_kill_9_of_the_node(folder: Path) -> None:
    disk = DiskConfig(path=folder / "disk", max_bytes=64 * MIB)
    config = CONFIG.model_copy(update={"disks": (disk,), "policy": "lru"})
    keys = random_keys(NUM_IN_ARENA + 8)
    async with node_process(folder, config) as node:
        async with node_engine(node.socket_path, LAYOUT) as engine:
            await store_all(engine, keys)
            await until_stored(engine, TierKind.DISK, keys[7])
        await node.kill()
    async with (
        node_process(folder, config) as node,
        node_engine(node.socket_path, LAYOUT) as engine,
    ):
        assert await load(engine, keys[:4]) == [TierKind.DISK] * 4


async def test_a_disk_that_another_process_uses_is_gone_without(folder: Path) -> None:
    disk = DiskConfig(path=folder / "disk", max_bytes=64 * MIB)
    config = CONFIG.model_copy(update={"disks": (disk,)})
    keys = random_keys(2)
    (folder / "other").mkdir(mode=0o700)
    async with (
        node_process(folder, config),
        node_process(folder / "other", config) as second,
        node_engine(second.socket_path, LAYOUT) as engine,
    ):
        await store_all(engine, keys)
        assert await load(engine, keys) == [TierKind.HOST] * 2


async def test_blocks_come_from_the_node_that_the_router_names(folder: Path) -> None:
    keys = random_keys(6)
    for name in ("a", "b"):
        (folder / name).mkdir(mode=0o700)
    async with (
        node_process(folder / "a", CONFIG) as here,
        node_process(folder / "b", CONFIG) as there,
        node_engine(here.socket_path, LAYOUT) as reader,
        node_engine(there.socket_path, LAYOUT) as writer,
    ):
        await store_all(writer, keys)
        assert await load(reader, keys) == []
        reader.fetch(keys, peer=there.peer)
        fetched = await reader.receive(Fetched)
        assert [found.kind for found in fetched.images] == [TierKind.PEER] * 6
        for found, key in zip(fetched.images, keys, strict=True):
            assert reader.image(found.offset, key).is_sound()


async def test_sigterm_ends_a_node_with_engines_connected(folder: Path) -> None:
    async with (
        node_process(folder, CONFIG) as node,
        node_engine(node.socket_path, LAYOUT) as engine,
    ):
        await engine.wait_for_slots(1)
        node.process.send_signal(signal.SIGTERM)
        await asyncio.wait_for(asyncio.to_thread(node.process.wait), 5)
        assert node.process.returncode == 0


def test_a_node_that_can_not_start_says_why_in_one_line(folder: Path) -> None:
    ended = subprocess.run(
        [
            sys.executable,
            *("-m", "cache_tiers.node_process"),
            *("--config", '{"host_bytes": 1000000000000000}'),
            *("--socket", str(folder / "node.sock")),
        ],
        cwd=SOURCE_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    [line] = ended.stderr.splitlines()
    assert line.startswith("the node cache can't start: host_bytes is 1000000000000000")
