"""Which bytes of an arena are whose: an allocator for images of a few sizes.

The arena is cut into slabs. A slab serves images of one size at a time, all slots alike, and may
serve another size once it is empty, so that models that share a node split the memory as they need
it, and nothing fragments. Must not know what lies in a slot, nor memory itself.
"""

from array import array


class SlabAllocator:
    """Owner of all offsets below ``num_slabs * slab_bytes``. Costs 5 bytes a slot."""

    def __init__(self, num_slabs: int, slab_bytes: int) -> None:
        self.slab_bytes = slab_bytes
        self._slabs: list[_Slab | None] = [None] * num_slabs
        # Taken from the end, so that the lowest go first: those are populated first.
        self._empty = list(range(num_slabs - 1, -1, -1))
        self._with_room: dict[int, dict[int, None]] = {}
        """Per image size the slabs with a free slot, in the order in which they got it."""

    @property
    def num_empty_slabs(self) -> int:
        return len(self._empty)

    def capacity(self, image_bytes: int) -> int:
        """Slots of this size if there were no others; 0: such an image fits nowhere."""
        return len(self._slabs) * (self.slab_bytes // image_bytes)

    def allocate(self, image_bytes: int) -> int | None:
        """The offset of a slot; None when there is none: no slab of this size has room, and none
        is empty.
        """
        with_room = self._with_room.setdefault(image_bytes, {})
        if with_room:
            index = next(iter(with_room))
        else:
            if not self._empty or image_bytes > self.slab_bytes:
                return None
            index = self._empty.pop()
            self._slabs[index] = _Slab(image_bytes, self.slab_bytes // image_bytes)
            with_room[index] = None
        slab = self._slab_at(index)
        slot = slab.take()
        if slab.is_full:
            del with_room[index]
        return index * self.slab_bytes + slot * image_bytes

    def free(self, offset: int) -> None:
        """Give back a slot that ``allocate`` returned."""
        index = offset // self.slab_bytes
        slab = self._slab_at(index)
        slab.give_back(self._slot(slab, offset))
        with_room = self._with_room[slab.image_bytes]
        if slab.is_empty:
            with_room.pop(index, None)
            self._slabs[index] = None
            self._empty.append(index)
        else:
            with_room[index] = None

    def slab_mates(self, offset: int) -> list[int]:
        """Offsets of the other used slots of the same slab: free them all, and another size has
        room.
        """
        index = offset // self.slab_bytes
        slab = self._slab_at(index)
        slot = self._slot(slab, offset)
        begin = index * self.slab_bytes
        return [begin + used * slab.image_bytes for used in slab.used_slots() if used != slot]

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` if the books contradict each other."""
        assert len(set(self._empty)) == len(self._empty), "a slab is empty twice"
        empty = {index for index, slab in enumerate(self._slabs) if slab is None}
        assert empty == set(self._empty), "an unused slab is not known as empty, or a used one is"
        for index, slab in enumerate(self._slabs):
            if slab is None:
                continue
            slab.check_integrity()
            assert not slab.is_empty, f"slab {index} holds nothing and is kept"
            has_room = index in self._with_room[slab.image_bytes]
            assert has_room != slab.is_full, f"slab {index} is full and has room, or neither"
        for image_bytes, indices in self._with_room.items():
            for index in indices:
                assert self._slab_at(index).image_bytes == image_bytes, "a slab of another size"

    def _slab_at(self, index: int) -> "_Slab":
        slab = self._slabs[index]
        assert slab is not None, f"nothing is allocated in slab {index}"
        return slab

    def _slot(self, slab: "_Slab", offset: int) -> int:
        slot, rest = divmod(offset % self.slab_bytes, slab.image_bytes)
        assert rest == 0, f"no slot begins at offset {offset}"
        return slot


class _Slab:
    """Equal slots in a row; the one that came back last is taken first."""

    def __init__(self, image_bytes: int, num_slots: int) -> None:
        self.image_bytes = image_bytes
        self._free = array("I", range(num_slots - 1, -1, -1))
        self._is_used = bytearray(num_slots)

    @property
    def is_full(self) -> bool:
        return not self._free

    @property
    def is_empty(self) -> bool:
        return len(self._free) == len(self._is_used)

    def take(self) -> int:
        slot = self._free.pop()
        self._is_used[slot] = 1
        return slot

    def give_back(self, slot: int) -> None:
        assert self._is_used[slot], f"slot {slot} is given back twice"
        self._is_used[slot] = 0
        self._free.append(slot)

    def used_slots(self) -> list[int]:
        return [slot for slot, is_used in enumerate(self._is_used) if is_used]

    def check_integrity(self) -> None:
        free = set(self._free)
        assert len(free) == len(self._free), "a slot is free twice"
        unused = {slot for slot, is_used in enumerate(self._is_used) if not is_used}
        assert free == unused, "a slot is used and free, or neither"
