"""ARC (Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache", FAST 2003).

One LRU list of blocks used once, one of those used more often; keys of what left either list say
which of them should have been longer. Room is made here before it is known for which block, so the
paper's tie between the lists, which depends on it, always goes to the first.
"""

from collections import OrderedDict

from cache_tiers.eviction.base import BlockFacts, CanEvict


class ArcPolicy:
    """An ``EvictionPolicy``; names are the paper's."""

    def __init__(self, blocks: BlockFacts, capacity: int) -> None:
        self._blocks = blocks
        self._capacity = max(1, capacity)
        self._target = 0.0
        """Wanted length of ``_once``: the paper's p."""
        self._once: OrderedDict[int, None] = OrderedDict()
        self._often: OrderedDict[int, None] = OrderedDict()
        self._once_ghosts: OrderedDict[bytes, None] = OrderedDict()
        self._often_ghosts: OrderedDict[bytes, None] = OrderedDict()

    def insert(self, entry: int, now_s: float) -> None:
        key = self._blocks.key(entry)
        num_once, num_often = len(self._once_ghosts), len(self._often_ghosts)
        if key in self._once_ghosts:
            self._target = min(self._capacity, self._target + max(1.0, num_often / num_once))
            del self._once_ghosts[key]
            self._often[entry] = None
        elif key in self._often_ghosts:
            self._target = max(0.0, self._target - max(1.0, num_once / num_often))
            del self._often_ghosts[key]
            self._often[entry] = None
        else:
            self._once[entry] = None
        self._trim_ghosts()

    def touch(self, entry: int, now_s: float) -> None:
        self._once.pop(entry, None)
        self._often[entry] = None
        self._often.move_to_end(entry)

    def remove(self, entry: int) -> None:
        self._once.pop(entry, None)
        self._often.pop(entry, None)

    def evict(self, now_s: float, can_evict: CanEvict) -> int | None:
        lists = [(self._once, self._once_ghosts), (self._often, self._often_ghosts)]
        if len(self._once) < max(1.0, self._target):
            lists.reverse()
        for entries, ghosts in lists:
            victim = next(filter(can_evict, entries), None)
            if victim is not None:
                del entries[victim]
                ghosts[self._blocks.key(victim)] = None
                return victim
        return None

    def _trim_ghosts(self) -> None:
        while self._once_ghosts and len(self._once) + len(self._once_ghosts) > self._capacity:
            self._once_ghosts.popitem(last=False)
        num_all = len(self._once) + len(self._once_ghosts) + len(self._often)
        while self._often_ghosts and num_all + len(self._often_ghosts) > 2 * self._capacity:
            self._often_ghosts.popitem(last=False)
