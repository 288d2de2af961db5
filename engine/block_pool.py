"""The fixed set of KV blocks of one engine: who references them, and which one is handed out next.

A block is *referenced* (in a sequence's table), *kept* (unreferenced, its content cached and
addressable until it is evicted) or *blank* (unreferenced, its content dead). Blank blocks go out
first, then the kept one that was not used for longest. Must not know keys, tokens or sequences.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from itertools import islice


class BlockPool:
    """Owner of block ids ``0 .. num_blocks - 1``."""

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None]) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._ref_counts = [0] * num_blocks
        self._cached: set[int] = set()
        self._blank = list(range(num_blocks - 1, -1, -1))
        # Not a plain dict: that walks over all the keys deleted before to find its first one.
        self._kept: OrderedDict[int, None] = OrderedDict()
        """Insertion order is eviction order."""
        self._freed: dict[int, None] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be handed out now, kept ones included."""
        return len(self._blank) + len(self._kept)

    @property
    def num_empty(self) -> int:
        """Those of ``num_free`` that keep nothing."""
        return len(self._blank)

    @property
    def cached_block_ids(self) -> frozenset[int]:
        return frozenset(self._cached)

    def next_evicted(self, num_blocks: int) -> list[int]:
        """Kept blocks that go when so many are handed out, in order."""
        return list(islice(self._kept, max(0, num_blocks - len(self._blank))))

    def num_references(self, block_id: int) -> int:
        return self._ref_counts[block_id]

    def num_unreferenced(self, block_ids: Iterable[int]) -> int:
        """Of ``block_ids``."""
        counts = self._ref_counts
        return [counts[block_id] for block_id in block_ids].count(0)

    def differing_references(self, expected: list[int], begin: int, end: int) -> list[int]:
        """Blocks of ``[begin, end)`` that are not referenced as often as ``expected`` says."""
        counts = self._ref_counts
        if counts[begin:end] == expected[begin:end]:
            return []
        end = min(end, self.num_blocks)
        return [b for b in range(begin, end) if counts[b] != expected[b]]

    def is_cached(self, block_id: int) -> bool:
        return block_id in self._cached

    def allocate(self) -> int:
        """Hand out a block with one reference; the caller has checked ``num_free``."""
        if self._blank:
            block_id = self._blank.pop()
        else:
            block_id, _ = self._kept.popitem(last=False)
            self._cached.discard(block_id)
            self._freed[block_id] = None
            self._on_evict(block_id)
        assert self._ref_counts[block_id] == 0
        self._ref_counts[block_id] = 1
        return block_id

    def acquire(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each of these blocks, which are referenced or kept."""
        counts, kept = self._ref_counts, self._kept
        for block_id in block_ids:
            if counts[block_id] == 0:
                del kept[block_id]
            counts[block_id] += 1

    def share(self, block_ids: Iterable[int], num_holders: int) -> None:
        """Add a reference for each of ``num_holders`` to blocks that are referenced."""
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0
            self._ref_counts[block_id] += num_holders

    def release(self, block_ids: Iterable[int]) -> None:
        """Drop one reference of each, in this order; the last one makes a block kept if it is
        cached, else blank.
        """
        counts, cached, kept = self._ref_counts, self._cached, self._kept
        for block_id in block_ids:
            counts[block_id] -= 1
            if counts[block_id] > 0:
                continue
            assert counts[block_id] == 0, f"block {block_id} was released twice"
            if block_id in cached:
                kept[block_id] = None
            else:
                self._blank.append(block_id)
                self._freed[block_id] = None

    def mark_cached(self, block_id: int) -> None:
        """A referenced block became addressable: keep its content when the last reference goes."""
        assert self._ref_counts[block_id] > 0
        self._cached.add(block_id)

    def take_freed(self) -> tuple[int, ...]:
        """Blocks whose content died since the last call, even if they were handed out again.

        Called once a step, before anything is written to what was handed out.
        """
        freed = tuple(self._freed)
        self._freed.clear()
        return freed

    def reset(self, cached_block_ids: Iterable[int]) -> None:
        """Drop every reference, from any state; only the content of ``cached_block_ids`` stays."""
        self._cached = set(cached_block_ids)
        self._ref_counts = [0] * self.num_blocks
        lru_first = [block_id for block_id in self._kept if block_id in self._cached]
        self._kept = OrderedDict.fromkeys([*lru_first, *sorted(self._cached)])
        self._blank = [b for b in range(self.num_blocks - 1, -1, -1) if b not in self._cached]
        self._freed = dict.fromkeys(self._blank)

    def check_integrity(self, expected_ref_counts: list[int]) -> None:
        """Raise ``AssertionError`` unless every block is in one state, the one the tables imply."""
        assert self._ref_counts == expected_ref_counts, "reference counts differ from block tables"
        unreferenced = {b for b, count in enumerate(self._ref_counts) if count == 0}
        blank = set(self._blank)
        assert len(blank) == len(self._blank), "a block is blank twice"
        assert blank.isdisjoint(self._kept), "a block is blank and kept"
        assert blank | self._kept.keys() == unreferenced, "an unreferenced block was lost"
        assert self._kept.keys() == self._cached & unreferenced, "kept and cached differ"
        assert blank.isdisjoint(self._cached), "a blank block is cached"
