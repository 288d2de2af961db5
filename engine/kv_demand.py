"""How many KV blocks sequences will come to need: the part of admission that looks ahead.

That a prompt fits now is asked elsewhere. Must not know slots, budgets or clocks.
"""

from bisect import bisect_left
from collections.abc import Sequence as OrderedSequences
from itertools import islice
from typing import Literal, Protocol

from engine.block_manager import BlockManager
from engine.predicted_demand import PredictedDemand
from engine.sequence import Sequence
from engine.waiting_queue import BY_ORDER


class KvDemand(Protocol):
    """One way to look ahead. The scheduler tells it what happens, admission control asks."""

    def fits(
        self, running: OrderedSequences[Sequence], candidate: Sequence, num_new_blocks: int
    ) -> bool:
        """Whether ``candidate``, which takes ``num_new_blocks`` now, fits beside those of
        ``running`` that come before it: the others would give way. ``running`` is in order.
        """
        ...

    def record_preemption(self, sequence: Sequence) -> None:
        """``sequence`` gives way because blocks ran out."""
        ...

    def record_end(self, sequence: Sequence) -> None:
        """``sequence`` leaves for good, whatever ended it."""
        ...


class OptimisticDemand:
    """Nobody grows."""

    def fits(
        self, running: OrderedSequences[Sequence], candidate: Sequence, num_new_blocks: int
    ) -> bool:
        return True

    def record_preemption(self, sequence: Sequence) -> None:
        pass

    def record_end(self, sequence: Sequence) -> None:
        pass


class WorstCaseDemand:
    """Everybody generates all the tokens that it may, and nobody ends before the others have."""

    def __init__(self, blocks: BlockManager) -> None:
        self._blocks = blocks

    def fits(
        self, running: OrderedSequences[Sequence], candidate: Sequence, num_new_blocks: int
    ) -> bool:
        num_before = bisect_left(running, candidate.order, key=BY_ORDER)
        num_left = self._blocks.num_free_blocks - num_new_blocks - self._num_growth(candidate)
        for sequence in islice(running, num_before):
            num_left -= self._num_growth(sequence)
        for sequence in islice(running, num_before, None):
            num_left += sequence.num_held_blocks
        return num_left >= 0

    def record_preemption(self, sequence: Sequence) -> None:
        pass

    def record_end(self, sequence: Sequence) -> None:
        pass

    def _num_growth(self, sequence: Sequence) -> int:
        geometry = self._blocks.geometry
        num_more = geometry.num_blocks_of(sequence.max_len)
        num_more -= geometry.num_blocks_of(sequence.num_tokens)
        return num_more + len(geometry.groups)  # and a copy of the last one, if it is shared


def create_kv_demand(
    name: Literal["predicted", "worst_case", "optimistic"], blocks: BlockManager
) -> KvDemand:
    """The one that the configuration names."""
    if name == "predicted":
        return PredictedDemand(blocks)
    return WorstCaseDemand(blocks) if name == "worst_case" else OptimisticDemand()
