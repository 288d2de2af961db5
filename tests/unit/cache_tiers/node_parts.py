"""What tests of a node's hierarchy are made of: a small arena, tiers that misbehave, an engine."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

from cache_tiers.block_image import BlockImage, ImageLayout, make_fingerprint
from cache_tiers.config import DiskConfig, NodeCacheConfig
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Fetch, Partial, RecomputeCost, Stored
from cache_tiers.node_store import NodeStore
from cache_tiers.slabs import SlabAllocator
from cache_tiers.tier import Lookup, Tier, TierError, TierKind

LAYOUT = ImageLayout(make_fingerprint("model"), 2, 512, 16)
WIDE = ImageLayout(make_fingerprint("other"), 1, 8192, 32)
"""Images of another size."""
COMPUTING = RecomputeCost(step_s=0.01, step_tokens=64, token_s=0.01)
"""Slower than any load here."""


def chain(name: str, num_blocks: int) -> list[BlockKey]:
    """Keys of one prompt."""
    return [
        BlockKey(blake2b(f"{name}-{position}".encode(), digest_size=16).digest())
        for position in range(num_blocks)
    ]


class SmallArena:
    """Slabs of four images of ``LAYOUT``."""

    def __init__(self, num_slabs: int) -> None:
        slab_bytes = 4 * LAYOUT.image_bytes
        self.slabs = SlabAllocator(num_slabs, slab_bytes)
        self.num_bytes = num_slabs * slab_bytes
        self.memory = memoryview(bytearray(self.num_bytes))
        self.allocate = self.slabs.allocate
        self.free = self.slabs.free
        self.slab_mates = self.slabs.slab_mates


class Held(NamedTuple):
    layout: ImageLayout
    key: BlockKey
    num_tokens: int


@dataclass(eq=False)
class FakeTier:
    """Holds images by key; ``mood`` says how it behaves."""

    kind: TierKind
    max_images: int = 1000
    mood: str = "well"
    """"fails", "stalls" until ``wake``, "lies" about what it has and takes, or "well"."""
    images: dict[tuple[bytes, bytes], tuple[ImageLayout, int, bytes]] = field(default_factory=dict)
    num_stores: int = 0
    num_loads: int = 0
    awake: asyncio.Event = field(default_factory=asyncio.Event)

    async def _behave(self) -> None:
        await asyncio.sleep(0)
        if self.mood == "stalls":
            await self.awake.wait()
        if self.mood == "fails":
            raise TierError(f"{self.kind} is broken; wait")

    async def find(self, layout: ImageLayout, keys: Sequence[BlockKey]) -> list[Lookup]:
        await self._behave()
        is_lying = self.mood == "lies"
        found = [is_lying or (layout.fingerprint, key) in self.images for key in keys]
        return [Lookup.HIT if is_there else Lookup.MISS for is_there in found]

    async def load(self, images: Sequence[BlockImage]) -> list[bool]:
        await self._behave()
        self.num_loads += len(images)
        if self.mood == "lies":
            return [False] * len(images)
        return [self._load(image) for image in images]

    async def store(self, images: Sequence[BlockImage]) -> list[bool]:
        copies = [bytes(image.memory) for image in images]
        await self._behave()
        assert copies == [bytes(image.memory) for image in images], "a slot changed under a write"
        self.num_stores += len(images)
        for image, copy in zip(images, copies, strict=True):
            if self.mood != "lies" and self.free_images(image.layout):
                name = (image.layout.fingerprint, image.key)
                self.images[name] = (image.layout, image.num_tokens, copy)
        return [self.mood == "lies" or self._has(image) for image in images]

    def held(self) -> Iterator[Held]:
        for (_, key), (layout, num_tokens, _) in self.images.items():
            yield Held(layout, BlockKey(key), num_tokens)

    def free_images(self, layout: ImageLayout) -> int:
        return self.max_images - len(self.images)

    def neighbours(self, layout: ImageLayout, key: BlockKey) -> list[BlockKey]:
        return [key]

    def evict(self, layout: ImageLayout, keys: Sequence[BlockKey]) -> None:
        for key in keys:
            self.images.pop((layout.fingerprint, key), None)

    def discard(self, layout: ImageLayout, key: BlockKey) -> None:
        self.evict(layout, [key])

    async def close(self) -> None:
        pass

    def _has(self, image: BlockImage) -> bool:
        return (image.layout.fingerprint, image.key) in self.images

    def _load(self, image: BlockImage) -> bool:
        if not self._has(image):
            return False
        image.memory[:] = self.images[image.layout.fingerprint, image.key][2]
        return image.is_sound()


@dataclass(eq=False)
class Node:
    """A store with its surroundings, and what an engine does with it."""

    num_slabs: int = 2
    disk: FakeTier | None = None
    object_store: FakeTier | None = None
    policy: str = "value"
    pin_quota_bytes: int = 1 << 30
    now_s: float = 1000.0
    arena: SmallArena = field(init=False)
    store: NodeStore = field(init=False)

    def __post_init__(self) -> None:
        self.arena = SmallArena(self.num_slabs)
        disk_bytes = 1 << 30
        config = NodeCacheConfig.model_validate(
            {
                "disks": [DiskConfig(path="unused", max_bytes=disk_bytes)] if self.disk else [],
                "object_store": {"url": "s3://bucket"} if self.object_store else None,
                "policy": self.policy,
                "pin_quota_bytes": self.pin_quota_bytes,
            }
        )
        self.store = NodeStore(
            self.arena,
            disk=self.disk,
            object_store=self.object_store,
            config=config,
            clock=lambda: self.now_s,
            key_stride=2,
            image_bytes=LAYOUT.image_bytes,
        )

    def write(self, layout: ImageLayout, offset: int, key: BlockKey, num_tokens: int) -> None:
        """As ranks do."""
        image = self.image(layout, offset, key, num_tokens)
        for rank in range(layout.num_shards):
            image.shard(rank)[:] = (key * layout.shard_bytes)[: layout.shard_bytes]
            image.seal_shard(rank)
        image.write_footer()

    def image(self, layout: ImageLayout, offset: int, key: BlockKey, num_tokens: int) -> BlockImage:
        memory = self.arena.memory[offset : offset + layout.image_bytes]
        return BlockImage(layout, memory, key, num_tokens)

    def put(
        self, keys: Sequence[BlockKey], *, layout: ImageLayout = LAYOUT, first: int = 1
    ) -> list[bool]:
        """Store a chain's blocks from its ``first`` on; which were kept."""
        return [
            self.commit(layout, offset, key, chain_len)
            for chain_len, key in enumerate(keys, first)
            for offset in self.store.grant(layout, 1)
        ]

    def commit(
        self, layout: ImageLayout, offset: int, key: BlockKey, chain_len: int, num_tokens: int = 0
    ) -> bool:
        num_tokens = num_tokens or layout.block_size_tokens
        self.write(layout, offset, key, num_tokens)
        return self.store.commit(layout, Stored(offset, key, num_tokens, chain_len, 0.1))

    async def get(
        self,
        keys: Sequence[BlockKey],
        *,
        peer: Tier | None = None,
        timeout_s: float = 0.5,
        partials: Sequence[Partial] = (),
    ) -> list[TierKind]:
        """Fetch a prompt and let go of it; where its blocks were."""
        result = await self.store.fetch(
            LAYOUT, make_fetch(keys, timeout_s=timeout_s, partials=partials), peer
        )
        for found in result.images:
            image = self.image(LAYOUT, found.offset, BlockKey(found.key), found.num_tokens)
            assert image.is_sound()
        self.store.release(LAYOUT, [found.offset for found in result.images])
        self.check()
        return [found.kind for found in result.images]

    def check(self) -> None:
        self.store.check_integrity()
        self.arena.slabs.check_integrity()


def make_fetch(
    keys: Sequence[BlockKey],
    *,
    num_held: int = 0,
    timeout_s: float = 0.5,
    partials: Sequence[Partial] = (),
    cost: RecomputeCost = COMPUTING,
) -> Fetch:
    return Fetch(1, list(keys), num_held, list(partials), cost, timeout_s)
