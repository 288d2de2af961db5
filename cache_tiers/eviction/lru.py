"""Least recently used leaves first."""

from collections import OrderedDict

from cache_tiers.eviction.base import CanEvict


class LruPolicy:
    """An ``EvictionPolicy``."""

    def __init__(self) -> None:
        self._entries: OrderedDict[int, None] = OrderedDict()

    def insert(self, entry: int, now_s: float) -> None:
        self._entries[entry] = None

    def touch(self, entry: int, now_s: float) -> None:
        self._entries.move_to_end(entry)

    def remove(self, entry: int) -> None:
        del self._entries[entry]

    def evict(self, now_s: float, can_evict: CanEvict) -> int | None:
        victim = next(filter(can_evict, self._entries), None)
        if victim is not None:
            del self._entries[victim]
        return victim
