"""What saves the least computing leaves first: expected uses per second and byte, times seconds of
computing.

Blocks used about as often, of one model, stand in one list, in the order of their last use; lists
are compared by their oldest block. So the blocks of a chain leave from its end, and none is
searched for. Greedy-Dual-Size-Frequency (Cherkasova, 1998) with learned instead of assumed rates.
"""

import heapq
from array import array

from cache_tiers.eviction.base import BlockFacts, CanEvict
from cache_tiers.eviction.reuse_model import ReuseModel, reuse_class

_NONE = -1
_CLASSES_PER_LAYOUT = 8


class _Ends:
    """Of one list."""

    __slots__ = ("newest", "oldest")

    def __init__(self) -> None:
        self.oldest = _NONE
        self.newest = _NONE


class ValuePolicy:
    """An ``EvictionPolicy``. Costs 10 bytes a block: links in arrays by the blocks' numbers."""

    def __init__(self, blocks: BlockFacts, reuse: ReuseModel) -> None:
        self._blocks = blocks
        self._reuse = reuse
        self._lists: dict[int, _Ends] = {}
        self._list_of = array("H")
        self._older = array("i")
        self._newer = array("i")

    def insert(self, entry: int, now_s: float) -> None:
        while entry >= len(self._older):
            self._older.append(_NONE)
            self._newer.append(_NONE)
            self._list_of.append(0)
        self._append(entry, self._number(entry))

    def touch(self, entry: int, now_s: float) -> None:
        self.remove(entry)
        self._append(entry, self._number(entry))

    def remove(self, entry: int) -> None:
        older, newer = self._older[entry], self._newer[entry]
        ends = self._lists[self._list_of[entry]]
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

    def admits(self, entry: int, now_s: float) -> bool:
        least = self._least(now_s, lambda _: True)
        return least is None or self._value(entry, now_s) >= self._value(least, now_s)

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
            self._append(entry, number)
            oldest = self._lists[number].oldest
            if oldest not in moved:
                heapq.heappush(candidates, (*self._rank(oldest, now_s), oldest, number))
        return None

    def _rank(self, entry: int, now_s: float) -> tuple[float, float]:
        return self._value(entry, now_s), self._blocks.last_used_s(entry)

    def _value(self, entry: int, now_s: float) -> float:
        blocks = self._blocks
        number = reuse_class(blocks.num_uses(entry))
        age_s = now_s - blocks.last_used_s(entry)
        return self._reuse.uses_per_s(number, age_s) * blocks.worth(entry)

    def _number(self, entry: int) -> int:
        number = reuse_class(self._blocks.num_uses(entry))
        return self._blocks.layout_number(entry) * _CLASSES_PER_LAYOUT + number

    def _append(self, entry: int, number: int) -> None:
        ends = self._lists.setdefault(number, _Ends())
        self._list_of[entry] = number
        self._older[entry], self._newer[entry] = ends.newest, _NONE
        if ends.newest == _NONE:
            ends.oldest = entry
        else:
            self._newer[ends.newest] = entry
        ends.newest = entry
