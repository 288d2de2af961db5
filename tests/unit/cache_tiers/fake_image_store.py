"""A hierarchy that is a dictionary, for what talks to one."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from cache_tiers.arena import Arena
from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Ended, Fetch, Found, Loaded, MediaEvents, Pin, Stored
from cache_tiers.tier import Tier, TierKind

LAYOUT = ImageLayout(b"f" * 16, num_shards=1, shard_bytes=8000, block_size_tokens=16)


def key_of(number: int) -> BlockKey:
    return BlockKey(number.to_bytes(16, "little"))


@dataclass
class Outcome:
    images: list[Found]
    predicted_s: float = 0.25
    fetch_s: float = 0.5


@dataclass
class FakeImageStore:
    arena: Arena
    may_fetch: asyncio.Event = field(default_factory=asyncio.Event)
    granted: set[int] = field(default_factory=set)
    images: dict[bytes, Stored] = field(default_factory=dict)
    leases: Counter[int] = field(default_factory=Counter)
    events: list[MediaEvents] = field(default_factory=list)
    gone: list[bytes] = field(default_factory=list)
    calls: list[object] = field(default_factory=list)
    """What was only passed on."""
    max_granted: int = 1_000_000

    def grant(self, layout: ImageLayout, num: int) -> list[int]:
        num = min(num, self.max_granted - len(self.granted))
        offsets = [self.arena.allocate(layout.image_bytes) for _ in range(num)]
        found = [offset for offset in offsets if offset is not None]
        self.granted.update(found)
        return found

    def give_back(self, layout: ImageLayout, offsets: Sequence[int]) -> None:
        for offset in offsets:
            self.granted.remove(offset)
            self.arena.free(offset)

    def commit(self, layout: ImageLayout, stored: Stored) -> bool:
        self.granted.remove(stored.offset)
        if stored.key in self.images:
            self.arena.free(stored.offset)
            return False
        self.images[stored.key] = stored
        return True

    async def fetch(self, layout: ImageLayout, fetch: Fetch, peer: Tier | None) -> Outcome:
        self.calls.append((fetch.fetch_id, peer))
        await self.may_fetch.wait()
        found: list[Found] = []
        for key in fetch.keys[fetch.num_held :]:
            stored = self.images.get(key)
            if stored is None:
                break
            found.append(Found(stored.offset, key, stored.num_tokens, TierKind.HOST))
        self.leases.update(image.offset for image in found)
        return Outcome(found)

    def release(self, layout: ImageLayout, offsets: Sequence[int]) -> None:
        self.leases.subtract(offsets)
        assert min(self.leases.values()) >= 0
        self.leases = +self.leases

    def discard(self, layout: ImageLayout, key: BlockKey) -> None:
        self.calls.append(("discard", key))
        self.arena.free(self.images.pop(key).offset)

    def pin(self, layout: ImageLayout, pin: Pin) -> int:
        self.calls.append(pin)
        return len(pin.keys)

    def ended(self, layout: ImageLayout, ended: Ended) -> None:
        self.calls.append(ended)

    def record_load(self, layout: ImageLayout, loaded: Loaded) -> None:
        self.calls.append(loaded)

    async def lend(self, layout: ImageLayout, keys: Sequence[BlockKey]) -> list[BlockImage | None]:
        lent: list[BlockImage | None] = []
        for key in keys:
            stored = self.images.get(key)
            if stored is None:
                lent.append(None)
                continue
            self.leases[stored.offset] += 1
            memory = self.arena.memory[stored.offset : stored.offset + layout.image_bytes]
            lent.append(BlockImage(layout, memory, key, stored.num_tokens))
        return lent

    def release_lent(self, images: Sequence[BlockImage]) -> None:
        for image in images:
            self.release(image.layout, [self.images[image.key].offset])

    def take_events(self, layout: ImageLayout) -> list[MediaEvents]:
        taken, self.events = self.events, []
        return taken

    def take_gone(self, layout: ImageLayout) -> list[bytes]:
        taken, self.gone = self.gone, []
        return taken

    def held(self, layout: ImageLayout, kind: TierKind) -> list[bytes]:
        return list(self.images) if kind is TierKind.HOST else []
