"""Compares the reference counts of blocks with the sequences that run, a little in every step.

A leaked block (more references than holders) is reported, to be given back; one that is used but
counted free, or held more often than counted, is our bug and raises before it corrupts an answer.
Block tables change between slices: what differs in two passes, one after the other, is only a
suspect, and is counted over all tables at one moment before anything is said of it. Reads no clock.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from engine.block_manager import BlockManager
from engine.sequence import Sequence as RunningSequence
from engine.step import NO_BLOCK

PERIOD_S = 30.0
_SLICE_BLOCKS = 512
"""Looked at in one slice: some 30 µs."""


class LeakedBlock(NamedTuple):
    block_id: int
    num_references: int
    """That no sequence has."""
    last_request_id: str
    """Of the request that took it last."""


class BlockAudit:
    """Owner of the audit under way."""

    def __init__(
        self,
        blocks: BlockManager,
        running: Sequence[RunningSequence],
        *,
        period_s: float = PERIOD_S,
        slice_blocks: int = _SLICE_BLOCKS,
    ) -> None:
        """``running`` is looked at in every slice."""
        self._blocks = blocks
        self._running = running
        self._period_s = period_s
        self._slice_blocks = slice_blocks
        self._due_s: float | None = None
        self._slices: Iterator[LeakedBlock | None] | None = None

    @property
    def is_under_way(self) -> bool:
        return self._slices is not None

    def advance(self, now_s: float) -> LeakedBlock | None:
        """Go on by one slice, if an audit is due; returns a leak that it found.

        Between steps only. Raises ``AssertionError`` for a block with too few references.
        """
        if self._slices is None:
            if self._due_s is None:  # nothing can have leaked yet
                self._due_s = now_s + self._period_s
            if now_s < self._due_s:
                return None
            self._due_s = now_s + self._period_s
            self._slices = self._audit()
        for leak in self._slices:
            return leak
        self._slices = None
        return None

    def restart(self) -> None:
        """All references were dropped: what was compared so far says nothing."""
        self._slices = None

    def _audit(self) -> Iterator[LeakedBlock | None]:
        suspects: set[int] | None = None
        for _ in range(2):
            num_holders = [0] * self._blocks.num_blocks
            yield from self._count_holders(num_holders)
            differing: set[int] = set()
            for begin in range(0, len(num_holders), self._slice_blocks):
                end = begin + self._slice_blocks
                differing.update(self._blocks.differing_references(num_holders, begin, end))
                yield None
            suspects = differing if suspects is None else suspects & differing
            if not suspects:
                return
        for block_id in sorted(suspects or ()):
            yield self._verify(block_id)

    def _count_holders(self, num_holders: list[int]) -> Iterator[None]:
        num_left = self._slice_blocks
        for sequence in list(self._running):
            for table in sequence.block_tables:
                # Emptied meanwhile if the sequence leaves: then it counts for a suspect at most.
                for begin in range(0, len(table), self._slice_blocks):
                    part = table[begin : begin + self._slice_blocks]
                    for block_id in part:
                        if block_id != NO_BLOCK:
                            num_holders[block_id] += 1
                            if self._blocks.num_references(block_id) == 0:
                                _fail(sequence, block_id)
                    num_left -= len(part)
                    if num_left <= 0:
                        num_left = self._slice_blocks
                        yield

    def _verify(self, block_id: int) -> LeakedBlock | None:
        num_holders = sum(
            [table.count(block_id) for sequence in self._running for table in sequence.block_tables]
        )
        num_leaked = self._blocks.num_references(block_id) - num_holders
        assert num_leaked >= 0, (
            f"block {block_id} is held {num_holders} times and counted {num_leaked + num_holders}"
        )
        if num_leaked == 0:
            return None
        return LeakedBlock(block_id, num_leaked, self._blocks.last_holder(block_id))


def _fail(sequence: RunningSequence, block_id: int) -> None:
    raise AssertionError(
        f"block {block_id} is used by request {sequence.request.request_id} and counted free"
    )
