"""Which blocks of the accelerator are copied to the node's cache, and when.

A block that is evicted or soon will be, used a second time, pinned, or wanted by another node; each
once, unless the node says that it lost it. Slots to copy to are granted ahead, so that planning
never waits: without one, what is evicted is dropped and counted, and the rest waits. Must not know
sequences, the connection, or why blocks are wanted.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from cache_tiers.messages import Stored
from engine.prefix_cache import BY_CHAIN_LEN, CachedBlock
from engine.step import BlockTransfer


class HeldBlock(NamedTuple):
    """A block with a key."""

    block_id: int
    chain_len: int
    """Blocks from the start of the prompt to this one, itself included."""


class PartialBlock(NamedTuple):
    """The last block of a prefix that does not end with a block."""

    block_id: int
    key: bytes
    chain_len: int
    num_tokens: int


class BlockWriter:
    """Owner of the granted slots, and of what is known to be stored."""

    def __init__(self, block_size_tokens: int) -> None:
        self._block_size = block_size_tokens
        self._is_open = False
        self._is_paused = False
        self._slots: list[int] = []
        self._stored: set[bytes] = set()
        self._wanted: dict[bytes, None] = {}
        """Keys of full blocks, in the order in which they are stored."""
        self._ahead: set[bytes] = set()
        """Keys of those that were next to be evicted at the last look."""
        self._partials: list[PartialBlock] = []
        """For the next plan: their blocks may be written again by the one after it."""
        self._evicted: list[PartialBlock] = []
        """Full ones, by the plan in the making."""
        self._planned: dict[bytes, tuple[BlockTransfer, int]] = {}
        """With chain lengths, by key; of the plan in the making or under way."""
        self.num_dropped = 0
        """Blocks that were evicted, or pinned, without a slot to copy them to."""

    @property
    def is_due(self) -> bool:
        """Whether a plan would copy something, even one without sequences."""
        return bool(self._slots) and bool(self._wanted or self._partials)

    @property
    def num_wanted(self) -> int:
        return len(self._wanted)

    def open(self) -> None:
        """A node is there; what it holds is unknown."""
        self.close()
        self._is_open = True

    def close(self) -> None:
        """The node is gone, and with it all slots."""
        self._is_open = False
        self._slots.clear()
        self._stored.clear()
        self._wanted.clear()
        self._ahead.clear()
        self._partials.clear()
        self._evicted.clear()
        self._planned.clear()

    def pause(self) -> None:
        """The accelerator holds nothing, between plans: what waits is lost, and nothing is wanted
        until ``resume``. Slots stay, and so does what the node holds.
        """
        self._is_paused = True
        self._wanted.clear()
        self._ahead.clear()
        self._partials.clear()
        self._evicted.clear()

    def resume(self) -> None:
        self._is_paused = False

    def grant(self, offsets: Iterable[int]) -> None:
        self._slots += offsets

    def note_stored(self, keys: Iterable[bytes]) -> None:
        """The node holds these."""
        self._stored.update(keys)

    def forget(self, keys: Iterable[bytes]) -> None:
        """The node holds these no more."""
        self._stored.difference_update(keys)

    def is_stored(self, key: bytes) -> bool:
        return key in self._stored

    def is_pending(self, key: bytes) -> bool:
        """Whether it may come to be stored."""
        is_partial = any(partial.key == key for partial in self._partials)
        return is_partial or key in self._wanted or key in self._planned

    def want(self, keys: Iterable[bytes]) -> None:
        """Store the blocks of these, as soon as there is room."""
        if self._is_open and not self._is_paused:
            stored, planned = self._stored, self._planned
            new = [key for key in keys if key not in stored and key not in planned]
            self._wanted.update(dict.fromkeys(new))

    def want_ahead(self, blocks: list[CachedBlock]) -> None:
        """Store what will be evicted next, the begin of chains first: their ends are of no use
        without. Once while it stands there, or what a full node does not take would be stored in
        every step.
        """
        if self._is_open:
            before, self._ahead = self._ahead, {block.key for block in blocks}
            new = [block for block in blocks if block.key not in before]
            self.want([block.key for block in sorted(new, key=BY_CHAIN_LEN)])

    def want_partial(self, partial: PartialBlock) -> None:
        """Store it in the very next plan, or never."""
        if self._is_open and not self.is_stored(partial.key) and not self.is_pending(partial.key):
            self._partials.append(partial)

    def evicted(self, block_id: int, key: bytes, chain_len: int) -> None:
        """The plan in the making hands out a block whose content would be lost."""
        if self._is_open and key not in self._stored and key not in self._planned:
            self._wanted.pop(key, None)
            self._evicted.append(PartialBlock(block_id, key, chain_len, self._block_size))

    def take(
        self, num_blocks: int, find: Callable[[bytes], HeldBlock | None]
    ) -> tuple[BlockTransfer, ...]:
        """All stores of a plan: what it evicts, partial blocks, and up to ``num_blocks`` of those
        that wait, if ``find`` still knows them.
        """
        for partial in self._partials:
            self._plan(partial)
        self._partials.clear()
        if len(self._evicted) > len(self._slots):
            # The end of a chain is of no use without its begin.
            self._evicted.sort(key=lambda block: block.chain_len)
        for evicted in self._evicted:
            self._plan(evicted)
        self._evicted.clear()
        while self._wanted and self._slots and num_blocks > 0:
            key = next(iter(self._wanted))
            del self._wanted[key]
            held = find(key)
            if held is not None and key not in self._stored:
                self._plan(PartialBlock(held.block_id, key, held.chain_len, self._block_size))
                num_blocks -= 1
        return tuple([transfer for transfer, _ in self._planned.values()])

    def commit(self, recompute_s: Callable[[int], float]) -> list[Stored]:
        """The plan was carried out: what the node is to be told. ``recompute_s``: of the block with
        a chain length.
        """
        stored = [
            Stored(t.offset, t.key, t.num_tokens, chain_len, recompute_s(chain_len))
            for t, chain_len in self._planned.values()
        ]
        self._stored.update(self._planned)
        self._planned.clear()
        return stored

    def abandon(self) -> None:
        """The plan failed: its slots can be used again, what it evicted is lost."""
        self._slots += [transfer.offset for transfer, _ in self._planned.values()]
        self._planned.clear()
        self._partials.clear()
        self._evicted.clear()

    def _plan(self, block: PartialBlock) -> None:
        if not self._slots:
            self.num_dropped += 1
            return
        transfer = BlockTransfer(block.block_id, self._slots.pop(), block.key, block.num_tokens)
        self._planned[block.key] = (transfer, block.chain_len)
