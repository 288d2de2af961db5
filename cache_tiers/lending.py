"""Lends images to other nodes: from the arena, or brought there from the disk first."""

import asyncio
from collections.abc import Sequence

import numpy as np

from cache_tiers.block_image import BlockImage
from cache_tiers.block_index import DISK, HOST, LOADING
from cache_tiers.evictable_tier import EvictableTier
from cache_tiers.holdings import Holdings
from cache_tiers.image_loads import ImageLoads, Load, Wanted
from cache_tiers.keys import BlockKey


class Lending:
    """Owner: one node's cache."""

    def __init__(
        self,
        holdings: Holdings,
        loads: ImageLoads,
        disk: EvictableTier | None,
        timeout_s: float,
    ) -> None:
        self._holdings = holdings
        self._loads = loads
        self._disk = disk
        self._timeout_s = timeout_s
        self.num_lent = 0

    async def lend(self, layout_number: int, keys: Sequence[BlockKey]) -> list[BlockImage | None]:
        """In the order of ``keys``; leased until ``release``. Cancelled, it has lent nothing."""
        holdings, index = self._holdings, self._holdings.index
        entries = {key: holdings.find(layout_number, key) for key in keys}
        leased: dict[int, Load | None] = {}
        """Blocks, and their loads if they are not here yet."""
        on_disk: list[Wanted] = []
        for key, entry in entries.items():
            if entry is None:
                continue
            flags = index.flags[entry]
            if flags & (HOST | LOADING):
                leased[entry] = self._loads.find(entry) if flags & LOADING else None
                holdings.lease(entry)
            elif flags & DISK and self._loads.can_read_disk():
                facts = index.num_tokens(entry), index.chain_lens[entry]
                on_disk.append(Wanted(key, *facts, 0.0))
        if on_disk and self._disk is not None:
            for load in self._loads.start(self._disk, layout_number, on_disk):
                leased[load.entry] = load
                holdings.lease(load.entry)
        offsets = {entry: index.offsets[entry] for entry in leased}
        lent: dict[int, BlockImage] = {}
        try:
            pending = [load.done for load in leased.values() if load is not None]
            if pending:
                await asyncio.wait(pending, timeout=self._timeout_s)
            lent = {e: holdings.image(e) for e, load in leased.items() if _is_here(load)}
        finally:
            for entry, each in leased.items():
                if entry not in lent and not _is_lost(each):
                    holdings.drop_lease(offsets[entry])
        self.num_lent += len(lent)
        return [lent.get(entry) if (entry := entries[key]) is not None else None for key in keys]

    def release(self, images: Sequence[BlockImage]) -> None:
        """Each once. One that stands twice in an answer counts once."""
        base = _address(self._holdings.arena.memory)
        for offset in {_address(image.memory) - base for image in images}:
            self._holdings.drop_lease(offset)


def _is_here(load: Load | None) -> bool:
    return load is None or (load.done.done() and load.done.result())


def _is_lost(load: Load | None) -> bool:
    """Its lease has ended already."""
    return load is not None and load.done.done() and not load.done.result()


def _address(memory: memoryview) -> int:
    address: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return address
