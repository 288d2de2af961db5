"""Several engines at once on one small node cache with a disk, doing what engines may do at random:
whatever they are told is there is there, and stays while they hold it.
"""

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cache_tiers.block_image import ImageLayout
from cache_tiers.config import DiskConfig, NodeCacheConfig
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Cancel, Ended, Fetched, Loaded, Pin
from cache_tiers.node_cache import NodeCache
from tests.integration.node_engines import NodeEngine, eventually, node_engine

pytestmark = pytest.mark.integration

MIB = 1024**2
SMALL = ImageLayout(b"s" * 16, num_shards=1, shard_bytes=100_000, block_size_tokens=16)
LARGE = ImageLayout(b"l" * 16, num_shards=1, shard_bytes=MIB, block_size_tokens=16)
CONFIG = NodeCacheConfig(host_bytes=32 * MIB, pin_quota_bytes=4 * MIB)
ROOT = bytes(16)
NUM_PROMPTS = 40
MAX_BLOCKS = 24


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hw-") as folder:  # short: socket paths are limited
        yield Path(folder)


@asynccontextmanager
async def node_cache(folder: Path) -> AsyncIterator[NodeCache]:
    disk = DiskConfig(path=folder / "disk", max_bytes=64 * MIB)
    cache = NodeCache(
        CONFIG.model_copy(update={"disks": (disk,)}),
        socket_path=folder / "node.sock",
        host="127.0.0.1",
        secret=b"the secret of this node",
    )
    await cache.start()
    try:
        yield cache
    finally:
        await cache.close()


class RandomEngine:
    """One connection's share of the fuzz."""

    def __init__(self, engine: NodeEngine, draw: random.Random) -> None:
        self._engine = engine
        self._draw = draw
        self._unanswered: dict[int, list[BlockKey]] = {}
        self._leased: dict[int, Fetched] = {}
        self.num_checked = 0

    async def turn(self) -> None:
        self._engine.poll()
        self._take_answers()
        action = self._draw.choice(("store", "store", "fetch", "fetch", "end", "cancel", "pin"))
        getattr(self, f"_{action}")()
        await asyncio.sleep(self._draw.choice((0, 0, 0.001)))

    def check_leases(self) -> None:
        for fetched in self._leased.values():
            self._check(fetched)

    def _prompt(self) -> list[BlockKey]:
        number, num_blocks = self._draw.randrange(NUM_PROMPTS), self._draw.randint(1, MAX_BLOCKS)
        return [BlockKey(bytes([number, block]) * 8) for block in range(num_blocks)]

    def _take_answers(self) -> None:
        for message in self._engine.unread:
            if not isinstance(message, Fetched):
                continue
            keys = self._unanswered.pop(message.fetch_id, None)
            if keys is None:  # cancelled meanwhile
                continue
            assert [found.key for found in message.images] == keys[: len(message.images)]
            offsets = {found.offset for found in message.images}
            assert len(offsets) == len(message.images)
            assert offsets.isdisjoint(self._engine.slots)
            self._check(message)
            if message.images:
                self._leased[message.fetch_id] = message
        self._engine.unread.clear()

    def _check(self, fetched: Fetched) -> None:
        for found in fetched.images:
            assert self._engine.image(found.offset, BlockKey(found.key)).is_sound()
            self.num_checked += 1

    def _store(self) -> None:
        keys = self._prompt()[: len(self._engine.slots)]
        if keys:
            self._engine.store(keys)

    def _fetch(self) -> None:
        keys = self._prompt()
        num_held = self._draw.randrange(len(keys))
        self._unanswered[self._engine.fetch(keys, num_held)] = keys[num_held:]

    def _end(self) -> None:
        """A load, or an answer that is complete."""
        if self._leased:
            fetch_id, fetched = self._leased.popitem()
            self._check(fetched)
            bad = [found.key for found in fetched.images if self._draw.random() < 0.05]
            self._engine.send(Loaded(fetch_id, len(fetched.images), 0.001, bad))
        else:
            keys = self._prompt()
            self._engine.send(Ended(keys[-1], list(keys), "chat"))

    def _cancel(self) -> None:
        if self._unanswered:
            fetch_id, _ = self._unanswered.popitem()
            self._engine.send(Cancel(fetch_id))

    def _pin(self) -> None:
        ttl_s = self._draw.choice((0.05, 300.0))
        self._engine.send(Pin(ROOT, list(self._prompt()[:3]), ttl_s))


async def run_engine(socket_path: Path, layout: ImageLayout, seed: int, num_turns: int) -> int:
    """Comes, does something, goes without a word, and comes again; how many images were checked."""
    draw = random.Random(seed)
    num_checked = 0
    while num_turns > 0:
        num_here = draw.randint(20, 120)
        num_turns -= num_here
        async with node_engine(socket_path, layout) as engine:
            random_engine = RandomEngine(engine, draw)
            for _ in range(num_here):
                await random_engine.turn()
            random_engine.check_leases()
            num_checked += random_engine.num_checked
    return num_checked


@pytest.mark.parametrize("seed", range(3))
async def test_what_engines_are_told_is_true_and_nothing_is_lost(folder: Path, seed: int) -> None:
    async with node_cache(folder) as cache:
        socket_path = folder / "node.sock"
        layouts = (SMALL, SMALL, LARGE)
        counts = await asyncio.gather(
            *(
                run_engine(socket_path, layout, 10 * seed + number, num_turns=300)
                for number, layout in enumerate(layouts)
            )
        )
        assert sum(counts) > 200, counts
        await eventually(lambda: cache.stats().engines.num_engines == 0)
        parts = cache._parts
        assert parts is not None
        await parts.store.settled()
        stats = parts.store.stats()
        assert stats.num_granted == stats.num_leases == 0
        assert cache.stats().engines.num_violations == 0
        assert stats.num_demoted > 0
        parts.store.check_integrity()
        parts.service._arena.slabs.check_integrity()
