"""What the node holds, where: the only one that changes the state of a block (``block_index``).

Keeps index, arena slots, leases, policies and events in step with each other. Decides nothing, and
moves no bytes.
"""

from collections.abc import Callable, Iterable
from typing import Protocol

from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.block_index import (
    DISK,
    HOST,
    LEAVING,
    LOADING,
    NO_SLOT,
    ORPHAN,
    WRITING,
    BlockIndex,
)
from cache_tiers.eviction.base import EvictionPolicy
from cache_tiers.keys import BlockKey
from cache_tiers.leases import Leases
from cache_tiers.media_events import MediaEventLog
from cache_tiers.tier import TierKind

_IN_USE = LOADING | WRITING
_SETTLED = HOST | LEAVING | ORPHAN


class SlotMemory(Protocol):
    """What is asked of an arena (``cache_tiers.arena``)."""

    @property
    def memory(self) -> memoryview: ...

    @property
    def num_bytes(self) -> int: ...

    def allocate(self, image_bytes: int) -> int | None: ...

    def free(self, offset: int) -> None: ...

    def slab_mates(self, offset: int) -> list[int]: ...


class Holdings:
    """Owner of all blocks of one node."""

    def __init__(
        self,
        arena: SlotMemory,
        index: BlockIndex,
        host_policy: EvictionPolicy,
        disk_policy: EvictionPolicy,
        clock: Callable[[], float],
        key_stride: int,
    ) -> None:
        self.arena = arena
        self.index = index
        self.host_policy = host_policy
        """Over what is in the arena and not leaving."""
        self.disk_policy = disk_policy
        """Over what is on the disk."""
        self.leases = Leases()
        self.used_bytes = 0
        """Of arena slots, whoever has them."""
        self.clock = clock
        self._key_stride = key_stride
        self._logs: list[MediaEventLog] = []

    def log(self, layout_number: int) -> MediaEventLog:
        while layout_number >= len(self._logs):
            self._logs.append(MediaEventLog(self._key_stride))
        return self._logs[layout_number]

    def find(self, layout_number: int, key: BlockKey) -> int | None:
        return self.index.table(layout_number).get(key)

    def image(self, entry: int) -> BlockImage:
        """A view of its arena slot."""
        index = self.index
        layout, begin = index.layout(entry), index.offsets[entry]
        memory = self.arena.memory[begin : begin + layout.image_bytes]
        return BlockImage(layout, memory, index.key(entry), index.num_tokens(entry))

    def add(
        self, layout_number: int, key: BlockKey, num_tokens: int, chain_len: int, recompute_s: float
    ) -> int:
        """A block that comes in; it was held nowhere."""
        self.log(layout_number).is_back(key)
        entry = self.index.add(
            layout_number, key, num_tokens, chain_len=chain_len, recompute_s=recompute_s
        )
        self.index.touch(entry, self.clock())
        return entry

    def use(self, entry: int, chain_len: int, now_s: float) -> None:
        """A prompt has it as its block ``chain_len``; called from the prompt's end on."""
        index = self.index
        index.touch(entry, now_s)
        flags = index.flags[entry]
        if not index.chain_lens[entry] and chain_len:
            index.chain_lens[entry] = chain_len
            for kind, flag in ((TierKind.HOST, HOST), (TierKind.DISK, DISK)):
                if flags & flag and self.is_told(entry):
                    self._log_of(entry).came(kind, index.key(entry))
        if flags & HOST and not flags & LEAVING:
            self.host_policy.touch(entry, now_s)
        if flags & DISK:
            self.disk_policy.touch(entry, now_s)

    def put_in_slot(self, entry: int, offset: int) -> None:
        """Its arena slot holds it from now on, until ``leave``."""
        flags = self.index.flags
        flags[entry] = (flags[entry] & ~LOADING) | HOST
        self.index.offsets[entry] = offset
        self._tell(TierKind.HOST, entry, is_here=True)

    def allocate(self, image_bytes: int) -> int | None:
        """A slot, which is nobody's yet."""
        offset = self.arena.allocate(image_bytes)
        if offset is not None:
            self.used_bytes += image_bytes
        return offset

    def free(self, offset: int, image_bytes: int) -> None:
        """A slot in which no block is."""
        self.arena.free(offset)
        self.used_bytes -= image_bytes

    def free_slot(self, entry: int) -> None:
        """Of a block that is not in it, or not any more."""
        self.free(self.index.offsets[entry], self.index.layout(entry).image_bytes)
        self.index.offsets[entry] = NO_SLOT

    def stay(self, entry: int) -> None:
        """It may be evicted like others; also one that was leaving."""
        self.index.flags[entry] &= ~LEAVING
        self.host_policy.insert(entry, self.clock())

    def stay_if_leaving(self, entry: int) -> None:
        if self.index.flags[entry] & LEAVING:
            self.stay(entry)

    def leave(self, entry: int) -> None:
        """Give its slot up as soon as nobody needs it. Precondition: the host's policy has let it
        go.
        """
        self.index.flags[entry] |= LEAVING
        self.settle(entry)

    def put_on_disk(self, entry: int) -> None:
        if not self.index.flags[entry] & DISK:
            self.index.flags[entry] |= DISK
            self.disk_policy.insert(entry, self.clock())
            self._tell(TierKind.DISK, entry, is_here=True)

    def leave_disk(self, entry: int, *, is_evicted: bool = False) -> None:
        """``is_evicted``: the disk's policy has let it go."""
        if not is_evicted:
            self.disk_policy.remove(entry)
        self.index.flags[entry] &= ~DISK
        self._tell(TierKind.DISK, entry, is_here=False)
        self.settle(entry)

    def lease(self, entry: int) -> int:
        """Its slot, which stays as it is until ``drop_lease``; also one that is loading."""
        offset = self.index.offsets[entry]
        assert offset != NO_SLOT, f"block {entry} has no slot"
        self.stay_if_leaving(entry)
        self.leases.take(offset, entry)
        return offset

    def drop_lease(self, offset: int) -> None:
        entry = self.leases.drop(offset)
        if entry is not None:
            self.settle(entry)

    def is_leased(self, entry: int) -> bool:
        return self.leases.is_leased(self.index.offsets[entry])

    def may_leave(self, entry: int) -> bool:
        """Nobody reads or writes its slot."""
        return not self.index.flags[entry] & _IN_USE and not self.is_leased(entry)

    def discard(self, entry: int) -> None:
        """Nobody finds it from now on."""
        index = self.index
        flags = index.flags[entry]
        if flags & HOST:
            if not flags & LEAVING:
                self.host_policy.remove(entry)
            self._tell(TierKind.HOST, entry, is_here=False)
        if flags & DISK:
            self.disk_policy.remove(entry)
            self._tell(TierKind.DISK, entry, is_here=False)
        self._log_of(entry).is_gone(index.key(entry))
        index.unlink(entry)
        index.flags[entry] = (flags & _IN_USE) | ORPHAN
        self.settle(entry)

    def settle(self, entry: int) -> None:
        """Do what a block's state wants and its use did not allow before."""
        index = self.index
        flags = index.flags[entry]
        if flags & _SETTLED == HOST:
            return
        if flags & (LEAVING | ORPHAN) and self.may_leave(entry):
            if index.offsets[entry] != NO_SLOT:
                self.free_slot(entry)
            if flags & ORPHAN:
                index.free(entry)
                return
            if flags & HOST:
                self._tell(TierKind.HOST, entry, is_here=False)
            index.flags[entry] = flags = flags & ~(HOST | LEAVING)
        if not flags & (HOST | DISK | LOADING | ORPHAN):
            self._log_of(entry).is_gone(index.key(entry))
            index.unlink(entry)
            index.free(entry)

    def is_told(self, entry: int) -> bool:
        """Whether routers hear of it."""
        index = self.index
        return index.is_full(entry) and self._log_of(entry).is_told(index.chain_lens[entry])

    def held(self, layout: ImageLayout, kind: TierKind) -> list[bytes]:
        """Told keys that a medium holds, prompts' beginnings first."""
        index = self.index
        flag = {TierKind.HOST: HOST, TierKind.DISK: DISK}.get(kind, 0)
        entries = index.at_stride(index.number_of(layout), flag, self._key_stride)
        return [index.key(entry) for entry in entries if index.is_full(entry)]

    def check_integrity(self, other_slots: Iterable[int]) -> None:
        """Raises ``AssertionError`` if the books contradict each other. ``other_slots``: used, and
        of no block.
        """
        index = self.index
        slots = list(other_slots)
        for entry in index.entries():
            flags, offset = index.flags[entry], index.offsets[entry]
            assert bool(flags & (HOST | LOADING)) <= (offset != NO_SLOT), "no slot"
            assert flags & (HOST | DISK | LOADING | ORPHAN), "a block that is nowhere is known"
            assert flags & (HOST | ORPHAN) or not flags & (WRITING | LEAVING), "nothing to write"
            assert not (flags & LEAVING and self.may_leave(entry)), "it could have left"
            found = index.table(index.layout_number(entry)).get(index.key(entry))
            assert (found == entry) == (not flags & ORPHAN), "found and orphaned, or neither"
            if offset != NO_SLOT:
                slots.append(offset)
        assert len(set(slots)) == len(slots), "a slot has two uses"
        for offset, entry in self.leases.items():
            assert index.offsets[entry] == offset, "a lease on a slot of another block"

    def _tell(self, kind: TierKind, entry: int, *, is_here: bool) -> None:
        if self.is_told(entry):
            log = self._log_of(entry)
            (log.came if is_here else log.went)(kind, self.index.key(entry))

    def _log_of(self, entry: int) -> MediaEventLog:
        return self.log(self.index.layout_number(entry))
