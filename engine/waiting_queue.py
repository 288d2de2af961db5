"""Sequences that wait for a place, in their order: by class and arrival, samples side by side.

The order of a sequence never changes, so that the queue is never sorted again. Must not know why
somebody waits.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from operator import attrgetter

from engine.sequence import Sequence

BY_ORDER = attrgetter("order")


class WaitingQueue:
    """Owner of the line. No two sequences in it have the same order."""

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._sequences)

    @property
    def first(self) -> Sequence:
        """Precondition: somebody waits."""
        return self._sequences[0]

    def add(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            insort(self._sequences, sequence, key=BY_ORDER)

    def remove(self, sequence: Sequence) -> None:
        index = bisect_left(self._sequences, sequence.order, key=BY_ORDER)
        assert self._sequences[index] is sequence, "a sequence is removed that does not wait"
        del self._sequences[index]

    def num_before(self, sequence: Sequence) -> int:
        """How many go first; ``sequence`` itself need not wait."""
        return bisect_left(self._sequences, sequence.order, key=BY_ORDER)

    def siblings_of(self, leader: Sequence) -> list[Sequence]:
        """Samples of the same request that have not begun to differ from ``leader``."""
        start = bisect_right(self._sequences, leader.order, key=BY_ORDER)
        return list(takewhile(leader.is_sibling, islice(self._sequences, start, None)))

    def clear(self) -> None:
        self._sequences.clear()
