"""What a node knows of each block that it holds, by layout and key.

A dict per layout gives the block's number, arrays by that number hold the rest: about 190 bytes a
block, its key included. The states in which a block may be:

    LOADING          its arena slot is being filled: found, not readable yet
    HOST             its arena slot holds it
    HOST | LEAVING   the slot is given up as soon as nobody needs it
    ... | WRITING    the slot is being copied to disk: it must stay
    ... | DISK       the disk holds it, whatever the arena does
    ORPHAN           nobody finds it any more; it only keeps its slot until that is not used

Must not know why a block changes its state, nor tiers.
"""

from array import array
from collections.abc import Iterator

import numpy as np

from cache_tiers.block_image import ImageLayout
from cache_tiers.keys import BlockKey

HOST = 1
DISK = 2
LOADING = 4
WRITING = 8
LEAVING = 16
ORPHAN = 32
PINNED = 64

NO_SLOT = -1
_TICKS_PER_S = 10
"""In 32 bits: for 13 years."""
_MAX_USES = 255
_UNKNOWN_RECOMPUTE_S = 1e-9
"""Until an engine says otherwise: all blocks are worth the same then."""


class BlockIndex:
    """Owner of blocks' numbers and columns. An ``eviction.base.BlockFacts``."""

    def __init__(self, clock_s: float) -> None:
        self._begin_s = clock_s
        self.layouts: list[ImageLayout] = []
        self._layout_numbers: dict[ImageLayout, int] = {}
        self._tables: list[dict[BlockKey, int]] = []
        self._usual_recompute_s: list[float] = []
        """By layout: what a disk holds from before has no cost of its own."""
        self._free: list[int] = []
        self._keys: list[BlockKey | None] = []
        self._layout_of = array("H")
        self._ticks = array("I")
        self._uses = array("B")
        self._partial_tokens: dict[int, int] = {}
        """Of the few blocks that are not full."""
        self._recompute_s = array("f")
        self.flags = array("B")
        """States, as above."""
        self.offsets = array("q")
        """Of arena slots, or ``NO_SLOT``."""
        self.chain_lens = array("I")
        """Blocks from the start of the prompt; 0 while unknown."""

    def __len__(self) -> int:
        return len(self._keys) - len(self._free)

    def layout_number(self, entry: int) -> int:
        return self._layout_of[entry]

    def number_of(self, layout: ImageLayout) -> int:
        """The number of a layout, which is new if need be."""
        number = self._layout_numbers.get(layout)
        if number is None:
            number = self._layout_numbers[layout] = len(self.layouts)
            self.layouts.append(layout)
            self._tables.append({})
            self._usual_recompute_s.append(_UNKNOWN_RECOMPUTE_S)
        return number

    def table(self, layout_number: int) -> dict[BlockKey, int]:
        """Keys to blocks of one layout; for reading only."""
        return self._tables[layout_number]

    def add(
        self,
        layout_number: int,
        key: BlockKey,
        num_tokens: int,
        *,
        chain_len: int = 0,
        recompute_s: float = 0.0,
    ) -> int:
        """A block that is held nowhere yet. Precondition: its key is unknown."""
        if self._free:
            entry = self._free.pop()
            self._keys[entry] = key
        else:
            entry = len(self._keys)
            self._keys.append(key)
            for column in self._columns():
                column.append(0)
            self._recompute_s.append(0.0)
        self._layout_of[entry] = layout_number
        self._uses[entry] = 0
        if num_tokens != self.layouts[layout_number].block_size_tokens:
            self._partial_tokens[entry] = num_tokens
        self._recompute_s[entry] = recompute_s
        if recompute_s > 0:
            self._usual_recompute_s[layout_number] = recompute_s
        self.flags[entry] = 0
        self.offsets[entry] = NO_SLOT
        self.chain_lens[entry] = chain_len
        self._tables[layout_number][key] = entry
        return entry

    def unlink(self, entry: int) -> None:
        """Nobody finds it by its key any more."""
        del self._tables[self._layout_of[entry]][self.key(entry)]

    def free(self, entry: int) -> None:
        """Its number may be another's. Precondition: it is unlinked."""
        self._keys[entry] = None
        self._partial_tokens.pop(entry, None)
        self.flags[entry] = 0
        self.offsets[entry] = NO_SLOT
        self._free.append(entry)

    def touch(self, entry: int, now_s: float) -> None:
        self._ticks[entry] = int((now_s - self._begin_s) * _TICKS_PER_S)

    def count_use(self, entry: int) -> None:
        self._uses[entry] = min(_MAX_USES, self._uses[entry] + 1)

    def key(self, entry: int) -> BlockKey:
        key = self._keys[entry]
        assert key is not None, f"block {entry} is free"
        return key

    def layout(self, entry: int) -> ImageLayout:
        return self.layouts[self._layout_of[entry]]

    def num_tokens(self, entry: int) -> int:
        return self._partial_tokens.get(entry) or self.layout(entry).block_size_tokens

    def is_full(self, entry: int) -> bool:
        return entry not in self._partial_tokens

    def num_uses(self, entry: int) -> int:
        """By prompts, since it came in."""
        return self._uses[entry]

    def last_used_s(self, entry: int) -> float:
        return self._begin_s + self._ticks[entry] / _TICKS_PER_S

    def worth(self, entry: int) -> float:
        seconds = self._recompute_s[entry] or self._usual_recompute_s[self._layout_of[entry]]
        return seconds / self.layout(entry).image_bytes

    def slots(self) -> dict[int, int]:
        """Used arena offsets and the blocks there; a pass over all."""
        offsets = np.array(self.offsets)
        entries = np.flatnonzero(offsets != NO_SLOT)
        return dict(zip(offsets[entries].tolist(), entries.tolist(), strict=True))

    def at_stride(self, layout_number: int, flag: int, key_stride: int) -> list[int]:
        """Of one layout and state those at every so manieth place of prompts, beginnings first; a
        pass over all blocks of the node, in arrays.
        """
        chain_lens = np.array(self.chain_lens)
        is_wanted = np.array(self.flags) & flag != 0
        is_wanted &= np.array(self._layout_of) == layout_number
        is_wanted &= (chain_lens > 0) & (chain_lens % key_stride == 0)
        entries = np.flatnonzero(is_wanted)
        by_place: list[int] = entries[np.argsort(chain_lens[entries], kind="stable")].tolist()
        return by_place

    def entries(self) -> Iterator[int]:
        """All that have a number, orphans too."""
        return (entry for entry, key in enumerate(self._keys) if key is not None)

    def _columns(self) -> "tuple[array[int], ...]":
        return (
            self._layout_of, self._ticks, self._uses, self.flags, self.offsets, self.chain_lens,
        )  # fmt: skip
