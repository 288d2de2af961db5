"""Copies what the host lets go to the disk, in the background, one batch after the other.

The queue is bounded by what the disk writes in a moment: what doesn't fit is dropped by whoever
offers it. A slot is not used again before its copy is done. A disk that fails is left alone for a
while; nothing else changes. Must not know why a block goes to disk.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cache_tiers.backoff import Backoff
from cache_tiers.block_index import DISK, LOADING, ORPHAN, PINNED, WRITING
from cache_tiers.evictable_tier import EvictableTier
from cache_tiers.holdings import Holdings
from cache_tiers.keys import BlockKey
from cache_tiers.tier import TierError

_BATCH_BYTES = 16 * 1024**2
_QUEUE_BYTES = 256 * 1024**2
"""A quarter of a second of one fast device."""
_CLOSING_S = 5.0
"""A device that hangs may never let go."""
_ARENA_DIVISOR = 8
"""And no more than this part of the arena waits to be written."""


@dataclass(slots=True)
class DemotionCounters:
    num_written: int = 0
    num_overflowed: int = 0
    """Not written since too much was waiting."""
    num_refused: int = 0
    """By a disk that is full of what must stay, or fails."""
    num_evicted: int = 0
    """From the disk, to make room."""


class Demoter:
    """Owner of all writes to one node's disk, and of what leaves it."""

    def __init__(self, holdings: Holdings, disk: EvictableTier | None, backoff: Backoff) -> None:
        self._holdings = holdings
        self._disk = disk
        self._backoff = backoff
        self._queue: deque[int] = deque()
        self.waiting_bytes = 0
        """To be written, and then free."""
        self._num_waiting: dict[int, int] = {}
        """By layout."""
        self.max_bytes: Final = min(_QUEUE_BYTES, holdings.arena.num_bytes // _ARENA_DIVISOR)
        self._task: asyncio.Task[None] | None = None
        self.counters = DemotionCounters()

    @property
    def is_accepting(self) -> bool:
        """Whether there is a disk that takes anything now."""
        if self._disk is None:
            return False
        try:
            self._backoff.check()
        except TierError:
            return False
        return True

    def has_room(self, image_bytes: int) -> bool:
        """In the queue: of a small arena one image, at least."""
        return self.waiting_bytes == 0 or self.waiting_bytes + image_bytes <= self.max_bytes

    def offer(self, entry: int) -> bool:
        """Begin to write a block that has a slot, unless it is on disk, or being written; whether
        it is one or the other now.
        """
        index = self._holdings.index
        flags = index.flags[entry]
        if flags & (DISK | WRITING):
            return True
        if not self.is_accepting:
            return False
        image_bytes = index.layout(entry).image_bytes
        if not self.has_room(image_bytes):
            self.counters.num_overflowed += 1
            return False
        if not self._make_room(entry):
            self.counters.num_refused += 1
            return False
        index.flags[entry] |= WRITING
        self._queue.append(entry)
        self._count(entry, 1)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_all())
        return True

    async def settled(self) -> None:
        """Return when nothing waits to be written."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """What was not written yet is dropped."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_CLOSING_S)

    def _make_room(self, entry: int) -> bool:
        """On the disk, by what is worth least."""
        holdings, index, disk = self._holdings, self._holdings.index, self._disk
        assert disk is not None
        layout, number = index.layout(entry), index.layout_number(entry)
        while disk.free_images(layout) <= self._num_waiting.get(number, 0):
            victim = holdings.disk_policy.evict(holdings.clock(), self._can_evict)
            if victim is None:
                return False
            keys = [index.key(victim)]
            if index.layout_number(victim) != number:
                # Room of one layout is another's only in whole segments.
                keys = disk.neighbours(index.layout(victim), keys[0])
                if not self._can_evict_all(index.layout_number(victim), keys):
                    holdings.disk_policy.insert(victim, holdings.clock())  # another one next time
                    return False
            self._evict(victim, keys)
        return True

    def _can_evict(self, entry: int) -> bool:
        return not self._holdings.index.flags[entry] & (PINNED | LOADING)

    def _can_evict_all(self, layout_number: int, keys: Sequence[BlockKey]) -> bool:
        """Of which the node may have forgotten some."""
        entries = [self._holdings.find(layout_number, key) for key in keys]
        return all(entry is None or self._can_evict(entry) for entry in entries)

    def _evict(self, victim: int, keys: Sequence[BlockKey]) -> None:
        """``victim``, which the disk's policy has let go, and the others of ``keys``."""
        holdings, index, disk = self._holdings, self._holdings.index, self._disk
        assert disk is not None
        layout, number = index.layout(victim), index.layout_number(victim)
        mates = [holdings.find(number, key) for key in keys]
        holdings.leave_disk(victim, is_evicted=True)
        for mate in mates:
            if mate is not None and mate != victim and index.flags[mate] & DISK:
                holdings.leave_disk(mate)
        self.counters.num_evicted += len(keys)
        disk.evict(layout, keys)

    async def _write_all(self) -> None:
        try:
            while self._queue:
                await self._write_batch()
        finally:
            while self._queue:
                self._finish(self._queue.popleft(), is_written=False)
            self._task = None

    async def _write_batch(self) -> None:
        batch = self._next_batch()
        assert self._disk is not None
        written: list[bool] = []
        try:
            # What nobody finds any more is still written with the others: it is dropped below.
            written = await self._disk.store([self._holdings.image(entry) for entry in batch])
            self._backoff.succeeded()
        except TierError as error:
            self._backoff.failed(str(error))
        finally:
            written += [False] * (len(batch) - len(written))
            for entry, is_written in zip(batch, written, strict=False):
                self._finish(entry, is_written=is_written)

    def _next_batch(self) -> list[int]:
        index = self._holdings.index
        layout = index.layout(self._queue[0])
        most = max(1, _BATCH_BYTES // layout.image_bytes)
        batch: list[int] = []
        while self._queue and len(batch) < most and index.layout(self._queue[0]) == layout:
            batch.append(self._queue.popleft())
        return batch

    def _finish(self, entry: int, *, is_written: bool) -> None:
        holdings, index = self._holdings, self._holdings.index
        self._count(entry, -1)
        index.flags[entry] &= ~WRITING
        if index.flags[entry] & ORPHAN:
            if is_written:
                self._drop_orphan(entry)
        elif is_written:
            self.counters.num_written += 1
            holdings.put_on_disk(entry)
        else:
            self.counters.num_refused += 1
            if index.flags[entry] & PINNED:
                holdings.stay_if_leaving(entry)
        holdings.settle(entry)

    def _drop_orphan(self, entry: int) -> None:
        index, disk = self._holdings.index, self._disk
        assert disk is not None
        again = self._holdings.find(index.layout_number(entry), index.key(entry))
        if again is None or not index.flags[again] & DISK:
            disk.evict(index.layout(entry), [index.key(entry)])

    def _count(self, entry: int, step: int) -> None:
        index = self._holdings.index
        number = index.layout_number(entry)
        self.waiting_bytes += step * index.layout(entry).image_bytes
        self._num_waiting[number] = self._num_waiting.get(number, 0) + step
