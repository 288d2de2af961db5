"""One segment: a file of equal slots, each of which holds an image of one layout.

Only counts; must not know files, nor which key lies in which other segment.
"""

import re
from array import array

from cache_tiers.block_image import ImageLayout
from cache_tiers.keys import BlockKey

_FREE, _TAKEN, _HELD, _BAD = range(4)
_FREE_RUN = re.compile(b"\\x00+")


class Segment:
    """Slots go free → taken (being written) → held → free. One that is given up while it is read is
    free only after the reading, since what is written next would be read half.
    """

    __slots__ = (
        "_given_up",
        "_readers",
        "_states",
        "keys",
        "layout",
        "num_bad",
        "num_free",
        "num_held",
        "num_tokens",
        "number",
    )

    def __init__(self, number: int, layout: ImageLayout, num_slots: int) -> None:
        self.number = number
        self.layout = layout
        self.keys: list[BlockKey | None] = [None] * num_slots
        self.num_tokens = array("I", bytes(4 * num_slots))
        self.num_free, self.num_held, self.num_bad = num_slots, 0, 0
        self._states = bytearray(num_slots)
        self._readers: dict[int, int] = {}
        self._given_up: set[int] = set()

    @property
    def name(self) -> str:
        """Of the file."""
        return f"segment-{self.number:08x}.kv"

    @property
    def num_slots(self) -> int:
        return len(self.keys)

    @property
    def num_bytes(self) -> int:
        return self.num_slots * self.layout.image_bytes

    @property
    def is_empty(self) -> bool:
        """Nobody reads, writes or keeps anything here."""
        return self.num_free + self.num_bad == self.num_slots and not self._readers

    def is_held(self, slot: int) -> bool:
        return self._states[slot] == _HELD

    def is_bad(self, slot: int) -> bool:
        return self._states[slot] == _BAD

    def take(self, num: int) -> list[int]:
        """Up to ``num`` free slots, in as few runs as can be: a run is one request."""
        runs = self._free_runs()
        enough = [run for run in runs if len(run) >= num]
        if enough:
            slots = list(min(enough, key=len)[:num])
        else:
            runs.sort(key=len, reverse=True)
            slots = [slot for run in runs for slot in run][:num]
        for slot in slots:
            self._set(slot, _TAKEN)
        return slots

    def fill(self, slot: int, key: BlockKey, num_tokens: int) -> None:
        """A taken slot holds the image of ``key``."""
        self.num_tokens[slot] = num_tokens
        self.keys[slot] = key
        self._set(slot, _HELD)

    def release(self, slot: int) -> None:
        """A slot that was taken or held is free, now or after those who read it."""
        self.keys[slot] = None
        if slot in self._readers:
            self._given_up.add(slot)
            self._set(slot, _TAKEN)
        else:
            self._set(slot, _FREE)

    def condemn(self, slot: int) -> None:
        """The slot is not used again."""
        self.keys[slot] = None
        self._given_up.discard(slot)
        self._set(slot, _BAD)

    def begin_read(self, slot: int) -> None:
        self._readers[slot] = self._readers.get(slot, 0) + 1

    def end_read(self, slot: int) -> None:
        """Undo one ``begin_read``."""
        self._readers[slot] -= 1
        if not self._readers[slot]:
            del self._readers[slot]
            if slot in self._given_up:
                self._given_up.discard(slot)
                self._set(slot, _FREE)

    def check_integrity(self) -> None:
        """For tests: counts and slots agree."""
        assert self._states.count(_FREE) == self.num_free
        assert self._states.count(_HELD) == self.num_held
        assert self._states.count(_BAD) == self.num_bad
        for slot, key in enumerate(self.keys):
            assert (key is not None) == self.is_held(slot)

    def _set(self, slot: int, state: int) -> None:
        for each, change in ((self._states[slot], -1), (state, 1)):
            self.num_free += change * (each == _FREE)
            self.num_held += change * (each == _HELD)
            self.num_bad += change * (each == _BAD)
        self._states[slot] = state

    def _free_runs(self) -> list[range]:
        return [range(*run.span()) for run in _FREE_RUN.finditer(self._states)]
