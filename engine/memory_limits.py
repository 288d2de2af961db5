"""How large a step may be for memory's sake: what is configured, less when memory did not suffice.

Halved when a step does not fit, raised slowly after many that did (additive increase,
multiplicative decrease, as in Chiu and Jain: Analysis of the Increase and Decrease Algorithms for
Congestion Avoidance in Computer Networks, 1989). Must not know sequences.
"""

from engine.config import EngineConfig
from engine.step import StepPlan

GOOD_STEPS_PER_RAISE = 512
_RAISES_TO_FULL = 16
_MAX_TRIES_OF_SMALLEST = 3
"""What does not fit now may do so when others have given memory back."""


class MemoryLimits:
    """Owner of the limits in force."""

    def __init__(self, config: EngineConfig) -> None:
        self._most_tokens = config.max_num_batched_tokens
        self._most_seqs = config.max_num_seqs
        self._min_prefill_tokens = config.min_prefill_chunk_tokens
        self.max_tokens = config.max_num_batched_tokens
        """Token budget of one step."""
        self.max_seqs = config.max_num_seqs
        """Sequences that may run."""
        self._num_good_steps = 0
        self._num_tries_of_smallest = 0

    def shrink(self, plan: StepPlan) -> bool:
        """``plan`` did not fit: make later ones smaller. ``False`` when there is no smaller one
        and it was tried often enough.
        """
        self._num_good_steps = 0
        num_decodes = sum(entry.is_last_pending for entry in plan.scheduled)
        num_seqs = sum(max(1, len(entry.sampling_slots)) for entry in plan.scheduled)
        num_tokens = plan.num_tokens
        if num_tokens - num_decodes > self._min_prefill_tokens:
            self.max_tokens = max(self._min_prefill_tokens, min(self.max_tokens, num_tokens) // 2)
        elif num_seqs > 1:
            self.max_seqs = num_seqs // 2
        else:
            self._num_tries_of_smallest += 1
            if self._num_tries_of_smallest == _MAX_TRIES_OF_SMALLEST:
                self._num_tries_of_smallest = 0
                return False
            return True
        self._num_tries_of_smallest = 0
        return True

    def record_fit(self) -> None:
        """A step fitted."""
        self._num_tries_of_smallest = 0
        if self.max_tokens == self._most_tokens and self.max_seqs == self._most_seqs:
            return
        self._num_good_steps += 1
        if self._num_good_steps == GOOD_STEPS_PER_RAISE:
            self._num_good_steps = 0
            self.max_tokens = _raised(self.max_tokens, self._most_tokens)
            self.max_seqs = _raised(self.max_seqs, self._most_seqs)


def _raised(limit: int, most: int) -> int:
    return min(most, limit + max(1, most // _RAISES_TO_FULL))
