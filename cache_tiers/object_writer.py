"""Copies long-lived pinned blocks to the object store, in the background, a few at a time.

What fails is left out: whoever pins it again asks again. Must not know pins.
"""

import asyncio
from collections import deque

from cache_tiers.block_index import DISK, HOST, LOADING
from cache_tiers.evictable_tier import EvictableTier
from cache_tiers.holdings import Holdings
from cache_tiers.image_loads import ImageLoads, Wanted
from cache_tiers.pins import PinnedBlock
from cache_tiers.tier import Lookup, Tier, TierError

_BATCH = 16
_MAX_WAITING = 64 * 1024


class ObjectWriter:
    """Owner of all writes of one node to the store."""

    def __init__(
        self,
        holdings: Holdings,
        loads: ImageLoads,
        object_store: Tier | None,
        disk: EvictableTier | None,
    ) -> None:
        self._holdings = holdings
        self._loads = loads
        self._object_store = object_store
        self._disk = disk
        self._queue: deque[PinnedBlock] = deque()
        self._task: asyncio.Task[None] | None = None
        self.num_written = 0
        self.num_failed = 0

    def offer(self, blocks: list[PinnedBlock]) -> None:
        if self._object_store is None:
            return
        num_taken = max(0, _MAX_WAITING - len(self._queue))
        self._queue.extend(blocks[:num_taken])
        self.num_failed += len(blocks[num_taken:])
        if self._task is None and self._queue:
            self._task = asyncio.get_running_loop().create_task(self._write_all())

    async def settled(self) -> None:
        """Return when nothing waits to be written."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _write_all(self) -> None:
        try:
            while self._queue:
                number = self._queue[0].layout_number
                batch: list[PinnedBlock] = []
                while self._queue and len(batch) < _BATCH:
                    if self._queue[0].layout_number != number:
                        break
                    batch.append(self._queue.popleft())
                await self._write(number, batch)
        finally:
            self._task = None

    async def _write(self, layout_number: int, blocks: list[PinnedBlock]) -> None:
        assert self._object_store is not None
        holdings = self._holdings
        layout = holdings.index.layouts[layout_number]
        offsets: list[int] = []
        try:
            found = await self._object_store.find(layout, [block.key for block in blocks])
            missing = [b for b, each in zip(blocks, found, strict=True) if each is Lookup.MISS]
            await self._bring(layout_number, missing)
            entries = [holdings.find(layout_number, block.key) for block in missing]
            here = [e for e in entries if e is not None and holdings.index.flags[e] & HOST]
            offsets = [holdings.lease(entry) for entry in here]
            images = [holdings.image(entry) for entry in here]
            stored = await self._object_store.store(images) if images else []
            self.num_written += sum(stored)
            self.num_failed += len(missing) - sum(stored)
        except TierError:  # which the store has told once
            self.num_failed += len(blocks)
        finally:
            for offset in offsets:
                holdings.drop_lease(offset)

    async def _bring(self, layout_number: int, blocks: list[PinnedBlock]) -> None:
        """Those that are on disk alone into the arena."""
        index = self._holdings.index
        wanted = []
        for block in blocks:
            entry = self._holdings.find(layout_number, block.key)
            if entry is not None and index.flags[entry] & (HOST | LOADING | DISK) == DISK:
                chain_len, num_tokens = index.chain_lens[entry], index.num_tokens(entry)
                wanted.append(Wanted(block.key, num_tokens, chain_len, 0.0))
        if wanted and self._disk is not None:
            loads = self._loads.start(self._disk, layout_number, wanted, is_asked=False)
            if loads:
                await asyncio.wait([load.done for load in loads])
