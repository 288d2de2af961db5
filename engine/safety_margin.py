"""How much room predictions of KV demand leave for being wrong, in standard deviations: as much as
keeps preemptions rare, learned from those that happen.

A preemption widens the margin by one step, every answer that ends while others wait narrows it by
a small part of one: so that it settles where about one answer in ``_ANSWERS_PER_PREEMPTION`` is
preempted (stochastic approximation of a quantile, after Robbins and Monro: A Stochastic
Approximation Method, 1951). Must not know sequences or blocks.
"""

_STEP = 0.25
_ANSWERS_PER_PREEMPTION = 50
_LEAST, _MOST = -1.0, 4.0
_FIRST = 1.0


class SafetyMargin:
    """Owner of the number."""

    def __init__(self) -> None:
        self.num_deviations = _FIRST

    def record_preemption(self) -> None:
        """Somebody gave way because blocks ran out."""
        self.num_deviations = min(_MOST, self.num_deviations + _STEP)

    def record_end(self) -> None:
        """An answer ended, and somebody waits for its blocks."""
        narrower = self.num_deviations - _STEP / _ANSWERS_PER_PREEMPTION
        self.num_deviations = max(_LEAST, narrower)
