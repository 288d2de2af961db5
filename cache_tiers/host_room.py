"""Makes room in the arena: who leaves it, and whether to disk or for good.

Slabs of the arena serve one size of images at a time, so room for another model's images takes a
whole slab. Must not know why room is needed.
"""

from dataclasses import dataclass

from cache_tiers.block_index import DISK, HOST, PINNED
from cache_tiers.demoter import Demoter
from cache_tiers.holdings import Holdings

_AGE_WEIGHT = 0.02


@dataclass(slots=True)
class EvictionCounters:
    num_evicted: int = 0
    num_dropped: int = 0
    """Of these, not on disk afterwards."""


class HostRoom:
    """Owner of what leaves the arena, and of the slots that hold no block."""

    def __init__(self, holdings: Holdings, demoter: Demoter) -> None:
        self._holdings = holdings
        self._demoter = demoter
        self.granted: set[int] = set()
        """Slots that engines hold, to write to."""
        self._full_bytes: int | None = None
        """What was used when there was no slot left; ``None``: that has not happened yet."""
        self.counters = EvictionCounters()
        self.eviction_age_s: float | None = None
        """How long blocks lately stay after their last use; ``None``: nothing had to leave yet."""

    def take(self, layout_number: int, num_slots: int) -> list[int]:
        """Up to ``num_slots`` slots, for which others leave if they must."""
        holdings = self._holdings
        image_bytes = holdings.index.layouts[layout_number].image_bytes
        offsets: list[int] = []
        slabs = _Slabs(holdings, self.granted)
        while len(offsets) < num_slots:
            offset = holdings.allocate(image_bytes)
            if offset is not None:
                offsets.append(offset)
                continue
            self._full_bytes = holdings.used_bytes
            if not self._evict_one(image_bytes, slabs):
                break
        self._write_ahead(image_bytes)
        return offsets

    def let_go(self, entry: int) -> bool:
        """A block that the host's policy has let go leaves, to disk if that takes it. Whether it
        does: a pinned one stays rather than be lost.
        """
        index = self._holdings.index
        if not self._demoter.offer(entry):
            if index.flags[entry] & PINNED:
                self._holdings.stay(entry)
                return False
            self.counters.num_dropped += 1
        self.counters.num_evicted += 1
        self._holdings.leave(entry)
        return True

    def _evict_one(self, image_bytes: int, slabs: "_Slabs") -> bool:
        holdings, index = self._holdings, self._holdings.index
        now_s = holdings.clock()

        def can_evict(entry: int) -> bool:
            if not self._can_leave(entry):
                return False
            is_alike = index.layout(entry).image_bytes == image_bytes
            return is_alike or slabs.can_empty(entry)

        victim = holdings.host_policy.evict(now_s, can_evict)
        if victim is None:
            return False
        self._note_age(now_s - index.last_used_s(victim))
        if index.layout(victim).image_bytes == image_bytes:
            return self.let_go(victim)
        self._empty_slab(victim, slabs)
        return True

    def _write_ahead(self, image_bytes: int) -> None:
        """Keep some slots free, or soon free: who would leave next is written to disk before its
        slot is needed, and need not be dropped then.
        """
        holdings, demoter = self._holdings, self._demoter
        if self._full_bytes is None or not demoter.is_accepting:
            return

        def can_evict(entry: int) -> bool:
            is_alike = holdings.index.layout(entry).image_bytes == image_bytes
            return is_alike and self._can_leave(entry)

        while demoter.has_room(image_bytes):
            free_bytes = self._full_bytes - holdings.used_bytes + demoter.waiting_bytes
            if free_bytes + image_bytes > demoter.max_bytes:
                return
            victim = holdings.host_policy.evict(holdings.clock(), can_evict)
            if victim is None:
                return
            if not self.let_go(victim):
                return

    def _can_leave(self, entry: int) -> bool:
        flags = self._holdings.index.flags[entry]
        if not self._holdings.may_leave(entry):
            return False
        if not flags & PINNED or flags & DISK:
            return True
        image_bytes = self._holdings.index.layout(entry).image_bytes
        return self._demoter.is_accepting and self._demoter.has_room(image_bytes)

    def _empty_slab(self, victim: int, slabs: "_Slabs") -> None:
        """At once: what is not on disk yet is dropped."""
        holdings, index = self._holdings, self._holdings.index
        mates = slabs.mates(victim)
        for mate in mates:
            holdings.host_policy.remove(mate)
        for entry in (victim, *mates):
            self.counters.num_evicted += 1
            self.counters.num_dropped += not index.flags[entry] & DISK
            holdings.leave(entry)

    def _note_age(self, age_s: float) -> None:
        before = age_s if self.eviction_age_s is None else self.eviction_age_s
        self.eviction_age_s = before + _AGE_WEIGHT * (age_s - before)


class _Slabs:
    """Which slabs can be emptied for images of another size; while one ``take`` lasts, in which no
    slot gets another block.
    """

    def __init__(self, holdings: Holdings, granted: set[int]) -> None:
        self._holdings = holdings
        self._granted = granted
        self._slots: dict[int, int] | None = None
        self._stuck: set[int] = set()

    def can_empty(self, entry: int) -> bool:
        """Whether all of the slab of ``entry``, which may leave, may leave."""
        index = self._holdings.index
        offset = index.offsets[entry]
        if offset in self._stuck:
            return False
        offsets = self._holdings.arena.slab_mates(offset)
        slots = self._known_slots()
        # Slots of no block are about to be filled.
        is_free = self._granted.isdisjoint(offsets) and all(
            each in slots and self._may_leave(slots[each]) for each in offsets
        )
        if not is_free:
            self._stuck.update((offset, *offsets))
        return is_free

    def mates(self, entry: int) -> list[int]:
        """The other blocks of its slab."""
        slots = self._known_slots()
        offset = self._holdings.index.offsets[entry]
        return [slots[each] for each in self._holdings.arena.slab_mates(offset)]

    def _known_slots(self) -> dict[int, int]:
        if self._slots is None:
            self._slots = self._holdings.index.slots()
        return self._slots

    def _may_leave(self, entry: int) -> bool:
        flags = self._holdings.index.flags[entry]
        is_kept = flags & (PINNED | DISK) == PINNED
        return bool(flags & HOST) and not is_kept and self._holdings.may_leave(entry)
