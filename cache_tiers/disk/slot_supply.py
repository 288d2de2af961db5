"""Where the next images of a folder go: free slots, and new segments as long as there is room.

Must not know what is written there.
"""

import asyncio
import logging
from functools import partial

from cache_tiers.backoff import Backoff
from cache_tiers.block_image import ImageLayout
from cache_tiers.disk.files import Files
from cache_tiers.disk.segment import Segment
from cache_tiers.disk.segment_table import Place, SegmentTable
from cache_tiers.disk.threads import IoThreads

logger = logging.getLogger(__name__)


class SlotSupply:
    """``growing`` is of making segments: while that fails, free slots are still given out."""

    def __init__(
        self, files: Files, table: SegmentTable, threads: IoThreads, growing: Backoff
    ) -> None:
        self.growing = growing
        self._files = files
        self._table = table
        self._threads = threads
        self._turn = asyncio.Lock()

    def free_images(self, layout: ImageLayout) -> int:
        """How many more images there is room for, as far as is known."""
        return self._table.free_images(layout, can_grow=self.growing.is_open)

    async def take(self, layout: ImageLayout, num: int) -> list[Place]:
        """Up to ``num`` slots, which the caller fills or gives back."""
        async with self._turn:
            places = self._table.take(layout, num)
            while len(places) < num and self.growing.is_open and await self._grow(layout):
                places += self._table.take(layout, num - len(places))
            return places

    async def _grow(self, layout: ImageLayout) -> bool:
        spare = self._table.spare(layout)
        while (segment := self._table.next_segment(layout)) is None and spare:
            await self._remove(spare.pop())
        if segment is None:
            return False
        try:
            job = partial(self._files.preallocate, segment.name, segment.num_bytes)
            await self._threads.run_all([job])
        except OSError as error:
            self.growing.failed(error)
            return False
        self.growing.succeeded()
        self._table.create(segment)
        return True

    async def _remove(self, segment: Segment) -> None:
        self._table.retire(segment)
        try:
            await self._threads.run_all([partial(self._files.remove, segment.name)])
        except OSError as error:
            logger.warning("%s stays behind until the next start (%s)", segment.name, error)
