"""S3-FIFO (Yang et al., "FIFO Queues are All You Need for Cache Eviction", SOSP 2023).

New blocks go through a small queue first, which takes a tenth; those used more than once there move
to the main one, the others leave and are remembered by their keys. Constants are the paper's.
"""

from collections import OrderedDict

from cache_tiers.eviction.base import BlockFacts, CanEvict

_SMALL_DIVISOR = 10
_MAX_FREQUENCY = 3


class S3FifoPolicy:
    """An ``EvictionPolicy``."""

    def __init__(self, blocks: BlockFacts, capacity: int) -> None:
        self._blocks = blocks
        self._small_len = max(1, capacity // _SMALL_DIVISOR)
        self._max_ghosts = max(1, capacity - self._small_len)
        self._small: OrderedDict[int, None] = OrderedDict()
        self._main: OrderedDict[int, None] = OrderedDict()
        self._frequencies: dict[int, int] = {}
        self._ghosts: OrderedDict[bytes, None] = OrderedDict()

    def insert(self, entry: int, now_s: float) -> None:
        was_here = self._ghosts.pop(self._blocks.key(entry), False) is None
        (self._main if was_here else self._small)[entry] = None
        self._frequencies[entry] = 0

    def touch(self, entry: int, now_s: float) -> None:
        self._frequencies[entry] = min(_MAX_FREQUENCY, self._frequencies[entry] + 1)

    def remove(self, entry: int) -> None:
        del self._frequencies[entry]
        self._small.pop(entry, None)
        self._main.pop(entry, None)

    def evict(self, now_s: float, can_evict: CanEvict) -> int | None:
        victim = None
        if len(self._small) >= self._small_len or not self._main:
            victim = self._evict_small(can_evict)
        if victim is None:
            victim = self._evict_main(can_evict)
        if victim is None:
            victim = self._evict_small(can_evict)
        if victim is not None:
            del self._frequencies[victim]
        return victim

    def _evict_small(self, can_evict: CanEvict) -> int | None:
        for _ in range(len(self._small)):
            entry = next(iter(self._small))
            if self._frequencies[entry] > 1:
                del self._small[entry]
                self._main[entry] = None
                self._frequencies[entry] = 0
            elif can_evict(entry):
                del self._small[entry]
                self._ghosts[self._blocks.key(entry)] = None
                if len(self._ghosts) > self._max_ghosts:
                    self._ghosts.popitem(last=False)
                return entry
            else:
                self._small.move_to_end(entry)
        return None

    def _evict_main(self, can_evict: CanEvict) -> int | None:
        # Each round lowers frequencies, so after four only what may not leave is left.
        for _ in range((_MAX_FREQUENCY + 1) * len(self._main)):
            entry = next(iter(self._main))
            frequency = self._frequencies[entry]
            if frequency == 0 and can_evict(entry):
                del self._main[entry]
                return entry
            self._frequencies[entry] = max(0, frequency - 1)
            self._main.move_to_end(entry)
        return None
