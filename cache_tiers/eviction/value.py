"""What saves the least computing leaves first: seconds of computing per byte, over the time since
the last use, which stands for the time to the next.

Blocks of one model stand in one list, in the order of their last use; lists are compared by their
oldest block. So the blocks of a chain leave from its end, and none is searched for. Of one model
this is LRU: no account of past uses did better on public traces (docs/experiments.md).
"""

import heapq
from array import array

from cache_tiers.eviction.base import BlockFacts, CanEvict

_NONE = -1
_LEAST_AGE_S = 0.01


class _Ends:
    """Of one list."""

    __slots__ = ("newest", "oldest")

    def __init__(self) -> None:
        self.oldest = _NONE
        self.newest = _NONE


class ValuePolicy:
    """An ``EvictionPolicy``. Costs 8 bytes a block: links in arrays by the blocks' numbers."""

    def __init__(self, blocks: BlockFacts) -> None:
        self._blocks = blocks
        self._lists: dict[int, _Ends] = {}
        """By layout."""
        self._older = array("i")
        self._newer = array("i")

    def insert(self, entry: int, now_s: float) -> None:
        while entry >= len(self._older):
            self._older.append(_NONE)
            self._newer.append(_NONE)
        self._append(entry)

    def touch(self, entry: int, now_s: float) -> None:
        self.remove(entry)
        self._append(entry)

    def remove(self, entry: int) -> None:
        older, newer = self._older[entry], self._newer[entry]
        ends = self._lists[self._blocks.layout_number(entry)]
        if older == _NONE:
            ends.oldest = newer
        else:
            self._newer[older] = newer
        if newer == _NONE:
            ends.newest = older
        else:
            self._older[newer] = older

    def evict(self, now_s: float, can_evict: CanEvict) -> int | None:
        victim = self._least(now_s, can_evict)
        if victim is not None:
            self.remove(victim)
        return victim

    def _least(self, now_s: float, can_evict: CanEvict) -> int | None:
        """Of equal ones the oldest."""
        candidates = []
        for number, ends in self._lists.items():
            if ends.oldest != _NONE:
                candidates.append((*self._rank(ends.oldest, now_s), ends.oldest, number))
        heapq.heapify(candidates)
        moved: set[int] = set()
        while candidates:
            *_, entry, number = heapq.heappop(candidates)
            if can_evict(entry):
                return entry
            # It is asked again when the others of its list have been: some must stay for long.
            moved.add(entry)
            self.remove(entry)
            self._append(entry)
            oldest = self._lists[number].oldest
            if oldest not in moved:
                heapq.heappush(candidates, (*self._rank(oldest, now_s), oldest, number))
        return None

    def _rank(self, entry: int, now_s: float) -> tuple[float, float]:
        used_s = self._blocks.last_used_s(entry)
        return self._blocks.worth(entry) / max(_LEAST_AGE_S, now_s - used_s), used_s

    def _append(self, entry: int) -> None:
        ends = self._lists.setdefault(self._blocks.layout_number(entry), _Ends())
        self._older[entry], self._newer[entry] = ends.newest, _NONE
        if ends.newest == _NONE:
            ends.oldest = entry
        else:
            self._newer[ends.newest] = entry
        ends.newest = entry
