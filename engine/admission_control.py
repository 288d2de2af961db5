"""Who may start now, and who may be sent away for it. Decides; what it asks may learn by it.

A sequence must find room for all its tokens now, and one more block for everybody that runs; how
far all of them will grow is another's to say. Where steps are limited for the sake of streams, the
tokens of all that run are, too.
"""

from collections.abc import Sequence as OrderedSequences

from engine.block_manager import BlockManager, PrefixHit
from engine.kv_demand import KvDemand
from engine.running_set import RunningSet
from engine.sequence import Sequence
from engine.step_limits import StepLimits


class AdmissionControl:
    """Looks at what runs, at the free blocks and at the limits in force."""

    def __init__(
        self, blocks: BlockManager, running: RunningSet, limits: StepLimits, demand: KvDemand
    ) -> None:
        self._blocks = blocks
        self._running = running
        self._limits = limits
        self._demand = demand

    @property
    def num_free_places(self) -> int:
        return self._limits.max_seqs - len(self._running)

    def find_start(self, sequence: Sequence) -> PrefixHit | None:
        """What ``sequence`` starts with, or ``None`` if it does not fit now."""
        if self.num_free_places <= 0:
            return None
        hit = self._blocks.find_prefix(sequence)
        if not self._running:
            # It fits by itself, if need be in small chunks and computed from the start.
            num_new_blocks = self._blocks.num_admission_blocks(sequence, hit, chunk_tokens=1)
            fits = num_new_blocks <= self._blocks.num_free_blocks
            return hit if fits else self._blocks.no_hit
        return hit if self._fits(sequence, hit, leaving=()) else None

    def lacks_blocks(self, sequence: Sequence) -> bool:
        """Whether ``sequence`` can't start beside those that run for want of free blocks alone,
        however far all of them will grow.
        """
        num_new_blocks = self._num_new_blocks(sequence, self._blocks.find_prefix(sequence))
        num_wanted = num_new_blocks + self._reserved_beside(len(self._running))
        return num_wanted > self._blocks.num_free_blocks

    def can_fork(self, sequence: Sequence) -> bool:
        """Whether ``sequence``, a sample that waits, may go on from a prompt just computed."""
        num_groups = self._blocks.num_groups
        if self._blocks.num_free_blocks < self._reserved_beside(len(self._running)):
            return False
        if not self.has_room_for_context(sequence):
            return False
        return self._demand.fits(self._running.sequences, sequence, num_new_blocks=num_groups)

    def has_room_for_context(
        self, sequence: Sequence, *, leaving: OrderedSequences[Sequence] = ()
    ) -> bool:
        """Whether the tokens of all that run, but those who leave for it, and its own are no more
        than may be.
        """
        most = self._limits.max_context_tokens
        if most is None or len(leaving) == len(self._running):
            return True
        num_tokens = sum([s.num_tokens for s in self._running])
        return num_tokens - sum([s.num_tokens for s in leaving]) + sequence.num_tokens <= most

    def find_victims(self, urgent: Sequence) -> list[Sequence]:
        """Those of a lower class that come after ``urgent``, whom it may take places and blocks
        from; none if even that would not let it start. Last the one that goes first.
        """
        if not self._running or self._running.last.order < urgent.order:
            return []
        service_class = urgent.request.service_class
        victims = [
            sequence
            for sequence in self._running
            if sequence.order > urgent.order and sequence.request.service_class > service_class
        ]
        if 0 < len(victims) < len(self._running):
            hit = self._blocks.find_prefix(urgent)
            if not self._fits(urgent, hit, leaving=victims):
                return []
        return sorted(victims, key=lambda victim: (victim.request.service_class, victim.order))

    def _fits(
        self, sequence: Sequence, hit: PrefixHit, *, leaving: OrderedSequences[Sequence]
    ) -> bool:
        """Beside all that run but those who leave for it."""
        if not self.has_room_for_context(sequence, leaving=leaving):
            return False
        num_new_blocks = self._num_new_blocks(sequence, hit)
        num_wanted = num_new_blocks + self._reserved_beside(len(self._running) - len(leaving))
        num_missing = num_wanted - self._blocks.num_free_blocks
        if num_missing > 0 and (
            num_missing > sum([s.num_held_blocks for s in leaving])  # at best, and quick to say
            or num_missing > self._blocks.num_freed_by(leaving)
        ):
            return False
        return self._demand.fits(self._running.sequences, sequence, num_new_blocks)

    def _num_new_blocks(self, sequence: Sequence, hit: PrefixHit) -> int:
        return self._blocks.num_admission_blocks(
            sequence, hit, chunk_tokens=self._limits.max_tokens_of_memory
        )

    def _reserved_beside(self, num_running: int) -> int:
        # One per group for all that run and one more sequence, so that nobody is preempted within
        # a block's length.
        return (num_running + 1) * self._blocks.num_groups
