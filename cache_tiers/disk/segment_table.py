"""What one folder holds: its segments and which slot has which key.

Changes that must survive this process are records: applied here, and handed to the journal at the
same moment, so that replaying them gives this table again. Must not know files nor threads.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.disk.records import Condemned, Created, Dropped, Record, Retired, Stored
from cache_tiers.disk.segment import Segment
from cache_tiers.keys import BlockKey

_SLOT_BITS = 24
MAX_SLOTS = 1 << _SLOT_BITS
_NUM_NUMBERS = 1 << 32
"""Of segments, in names and records: a foreign file may have the last one."""
_MIN_SLOTS = 8
"""Of a segment, if there is room: else much of a file would be left over."""
_MAX_BAD_SLOTS = 2
"""A segment with more is suspect as a whole."""


class Place(NamedTuple):
    """A slot of a segment."""

    segment: Segment
    slot: int


class Held(NamedTuple):
    """What a restarted node cache has to know of an image."""

    layout: ImageLayout
    key: BlockKey
    num_tokens: int


class SegmentTable:
    """``log`` gets a record of each lasting change."""

    def __init__(self, max_bytes: int, segment_bytes: int, log: Callable[[Record], None]) -> None:
        self._max_bytes = max_bytes
        self._wanted_bytes = segment_bytes
        self._log = log
        self._segments: dict[int, Segment] = {}
        self._by_layout: dict[ImageLayout, dict[int, Segment]] = {}
        # A key's place is one int, about 90 bytes a block without the key, which callers share.
        self._places: dict[ImageLayout, dict[BlockKey, int]] = {}
        self._next_number = 0
        self._bytes_of_segments = 0
        self.other_bytes = 0
        """What else takes room, as the owner says."""

    @property
    def used_bytes(self) -> int:
        return self._bytes_of_segments + self.other_bytes

    @property
    def num_images(self) -> int:
        return sum(len(places) for places in self._places.values())

    @property
    def num_records(self) -> int:
        """How many records would tell all of it."""
        return self.num_images + len(self._segments)

    @property
    def segments(self) -> list[Segment]:
        return list(self._segments.values())

    def locate(self, layout: ImageLayout, key: BlockKey) -> Place | None:
        """Where an image lies."""
        place = self._places.get(layout, {}).get(key)
        if place is None:
            return None
        return Place(self._segments[place >> _SLOT_BITS], place & (MAX_SLOTS - 1))

    def is_at(self, place: Place, image: BlockImage) -> bool:
        """Whether an image is held just there."""
        return self.locate(image.layout, image.key) == place

    def excess(self) -> Segment | None:
        """The segment to give up while there are more bytes than allowed: the one with least."""
        if self.used_bytes <= self._max_bytes or not self._segments:
            return None
        return min(self._segments.values(), key=lambda each: each.num_held)

    def held(self) -> Iterator[Held]:
        """All images, neighbours one after the other."""
        for segment in self.segments:
            for key, num_tokens in zip(segment.keys, segment.num_tokens, strict=True):
                if key is not None:
                    yield Held(segment.layout, key, num_tokens)

    def records(self) -> Iterator[Record]:
        """What ``apply`` makes this table of again. May run beside changes, whose records must then
        be applied once more behind these.
        """
        for segment in self.segments:
            yield Created(segment.number, segment.num_slots, segment.layout)
            for slot, key in enumerate(segment.keys):
                if key is not None:
                    yield Stored(segment.number, slot, key, segment.num_tokens[slot])
                elif segment.is_bad(slot):
                    yield Condemned(segment.number, slot)

    def free_images(self, layout: ImageLayout, *, can_grow: bool) -> int:
        """How many more images could be stored, as far as is known."""
        free = sum(each.num_free for each in self._of_layout(layout))
        return free + (self._growth_bytes(layout) // layout.image_bytes if can_grow else 0)

    def take(self, layout: ImageLayout, num: int) -> list[Place]:
        """Up to ``num`` slots to be written, from segments that are there."""
        candidates = [each for each in self._of_layout(layout) if each.num_free]
        candidates.sort(key=lambda each: each.num_free, reverse=True)
        places: list[Place] = []
        for segment in candidates:
            if len(places) == num:
                break
            places += (Place(segment, slot) for slot in segment.take(num - len(places)))
        return places

    def next_segment(self, layout: ImageLayout) -> Segment | None:
        """The segment to be made for more of ``layout``: first its file, then ``create``. ``None``
        if there is no room, ``spare`` segments aside.
        """
        room_slots = max(self._max_bytes - self.used_bytes, 0) // layout.image_bytes
        num_slots = min(self._wanted_slots(layout), room_slots)
        if not num_slots or (num_slots < self._wanted_slots(layout) and self.spare(layout)):
            return None
        number = self._next_number % _NUM_NUMBERS
        while number in self._segments:
            number = (number + 1) % _NUM_NUMBERS
        self._next_number = number + 1
        return Segment(number, layout, num_slots)

    def spare(self, layout: ImageLayout) -> list[Segment]:
        """Segments that nobody needs if more of ``layout`` is to be stored."""
        others = (each for key, each in self._by_layout.items() if key != layout)
        return [each for segments in others for each in segments.values() if each.is_empty]

    def skip_numbers(self, number: int) -> None:
        """A file of that number is there: no segment gets it, nor one before."""
        self._next_number = max(self._next_number, number + 1)

    def create(self, segment: Segment) -> None:
        """The file of ``next_segment`` is there."""
        self._change(Created(segment.number, segment.num_slots, segment.layout))

    def retire(self, segment: Segment) -> None:
        """A segment goes, with what it holds."""
        self._change(Retired(segment.number))

    def lose(self, segment: Segment) -> None:
        """A segment's file is gone, and what it held: neither to be read nor written again."""
        if segment.number in self._segments:
            self.retire(segment)

    def fill(self, place: Place, key: BlockKey, num_tokens: int) -> bool:
        """A slot that was taken holds the image; ``False`` if its segment is gone meanwhile."""
        if place.segment.number not in self._segments:
            return False
        self._change(Stored(place.segment.number, place.slot, key, num_tokens))
        return True

    def drop(self, place: Place) -> None:
        """Give up the image in ``place``."""
        self._change(Dropped(place.segment.number, place.slot))

    def condemn(self, place: Place) -> None:
        """Never use the slot again."""
        if place.segment.number in self._segments:
            self._change(Condemned(place.segment.number, place.slot))

    def is_suspect(self, segment: Segment) -> bool:
        """Whether too much of it came back wrong."""
        return segment.num_bad > min(_MAX_BAD_SLOTS, segment.num_slots - 1)

    def apply(self, record: Record) -> None:
        """Make the change that a record tells; one that can't be is left out, since records before
        it may be lost.
        """
        match record:
            case Created():
                self._apply_created(record)
            case Retired(number):
                segment = self._segments.pop(number, None)
                if segment is not None:
                    del self._by_layout[segment.layout][number]
                    self._bytes_of_segments -= segment.num_bytes
                    for key in filter(None, segment.keys):
                        del self._places[segment.layout][key]
            case Stored():
                self._apply_stored(record)
            case Dropped(number, slot):
                segment = self._slot_owner(number, slot)
                if segment is not None and self._forget(segment, slot):
                    segment.release(slot)
            case Condemned(number, slot):
                segment = self._slot_owner(number, slot)
                if segment is not None:
                    self._forget(segment, slot)
                    segment.condemn(slot)

    def check_integrity(self) -> None:
        """For tests: both directions of the index agree."""
        assert self._bytes_of_segments == sum(each.num_bytes for each in self.segments)
        for segment in self.segments:
            segment.check_integrity()
        held = [(held.layout, held.key) for held in self.held()]
        assert len(set(held)) == len(held) == self.num_images
        for layout, key in held:
            place = self.locate(layout, key)
            assert place is not None
            assert place.segment.keys[place.slot] == key

    def _change(self, record: Record) -> None:
        self.apply(record)
        self._log(record)

    def _of_layout(self, layout: ImageLayout) -> Iterable[Segment]:
        return self._by_layout.get(layout, {}).values()

    def _wanted_slots(self, layout: ImageLayout) -> int:
        return min(max(self._wanted_bytes // layout.image_bytes, _MIN_SLOTS), MAX_SLOTS)

    def _growth_bytes(self, layout: ImageLayout) -> int:
        spare_bytes = sum(each.num_bytes for each in self.spare(layout))
        return max(self._max_bytes - self.used_bytes + spare_bytes, 0)

    def _apply_created(self, record: Created) -> None:
        is_valid = 0 < record.num_slots <= MAX_SLOTS and record.layout.shard_bytes > 0
        if record.segment in self._segments or not is_valid:
            return
        segment = Segment(record.segment, record.layout, record.num_slots)
        self._segments[segment.number] = segment
        self._by_layout.setdefault(segment.layout, {})[segment.number] = segment
        self._places.setdefault(segment.layout, {})
        self._bytes_of_segments += segment.num_bytes
        self.skip_numbers(segment.number)

    def _apply_stored(self, record: Stored) -> None:
        segment = self._slot_owner(record.segment, record.slot)
        if segment is None or segment.is_bad(record.slot):
            return
        self._forget(segment, record.slot)
        before = self.locate(segment.layout, record.key)
        if before is not None:
            before.segment.release(before.slot)
        self._places[segment.layout][record.key] = record.segment << _SLOT_BITS | record.slot
        segment.fill(record.slot, record.key, record.num_tokens)

    def _slot_owner(self, number: int, slot: int) -> Segment | None:
        segment = self._segments.get(number)
        return segment if segment is not None and slot < segment.num_slots else None

    def _forget(self, segment: Segment, slot: int) -> bool:
        key = segment.keys[slot]
        return key is not None and self._places[segment.layout].pop(key, None) is not None
