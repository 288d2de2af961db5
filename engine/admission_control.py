"""Who may start now, and who may be sent away for it. Decides; changes nothing."""

from engine.block_manager import BlockManager, PrefixHit
from engine.running_set import RunningSet
from engine.sequence import Sequence
from engine.step_limits import StepLimits


class AdmissionControl:
    """Looks at what runs, at the free blocks and at the limits in force."""

    def __init__(self, blocks: BlockManager, running: RunningSet, limits: StepLimits) -> None:
        self._blocks = blocks
        self._running = running
        self._limits = limits

    @property
    def num_free_places(self) -> int:
        return self._limits.max_seqs - len(self._running)

    @property
    def num_reserved_blocks(self) -> int:
        """What stays free beside whoever is admitted."""
        return self._reserved_beside(len(self._running))

    def find_start(self, sequence: Sequence) -> PrefixHit | None:
        """What ``sequence`` starts with, or ``None`` if it does not fit now."""
        if self.num_free_places <= 0:
            return None
        hit = self._blocks.find_prefix(sequence)
        if not self._running:
            # It fits by itself, if need be in small chunks and computed from the start.
            fits = self._blocks.can_admit(sequence, hit, chunk_tokens=1, num_reserved_blocks=0)
            return hit if fits else self._blocks.no_hit
        return hit if self._fits(sequence, hit, self.num_reserved_blocks) else None

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
        num_stay = len(self._running) - len(victims)
        if victims and num_stay > 0:
            # At best: some of their blocks may be shared with those that stay.
            num_freed = sum(sequence.num_held_blocks for sequence in victims)
            hit = self._blocks.find_prefix(urgent)
            if not self._fits(urgent, hit, self._reserved_beside(num_stay) - num_freed):
                return []
        return sorted(victims, key=lambda victim: (victim.request.service_class, victim.order))

    def _fits(self, sequence: Sequence, hit: PrefixHit, num_reserved_blocks: int) -> bool:
        return self._blocks.can_admit(
            sequence,
            hit,
            chunk_tokens=self._limits.max_tokens,
            num_reserved_blocks=num_reserved_blocks,
        )

    def _reserved_beside(self, num_running: int) -> int:
        # One per group for all that run and one more sequence, so that nobody is preempted within
        # a block's length.
        return (num_running + 1) * self._blocks.num_groups
