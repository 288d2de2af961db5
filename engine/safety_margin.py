"""How much room predictions of KV demand leave for being wrong, in standard deviations: as much as
keeps tokens from being computed twice, learned from those that are.

What a preemption loses widens the margin; every answer that ends while others wait narrows it, by a
small part of its tokens. So it settles where that part of the tokens is lost (stochastic
approximation, after Robbins and Monro: A Stochastic Approximation Method, 1951). Must not know
sequences or blocks.
"""

_LOST_SHARE = 0.03
_STEP = 0.25
"""For as many tokens as an answer has on average, with its prompt."""
_MEAN_WEIGHT = 0.02
_LEAST, _FIRST, _MOST = -1.0, 1.0, 4.0


class SafetyMargin:
    """Owner of the number."""

    def __init__(self) -> None:
        self.num_deviations = _FIRST
        self._mean_tokens = 0.0
        """0 while unknown."""

    def record_lost(self, num_tokens: int) -> None:
        """Somebody gave way, with ``num_tokens`` computed, because blocks ran out."""
        self._widen(num_tokens)

    def record_done(self, num_tokens: int, *, is_crowded: bool) -> None:
        """A sequence of ``num_tokens`` ended; ``is_crowded``: somebody waits for its blocks.

        Where nobody waits the margin decides nothing, and nothing speaks against it.
        """
        mean = self._mean_tokens or num_tokens
        self._mean_tokens = mean + _MEAN_WEIGHT * (num_tokens - mean)
        if is_crowded:
            self._widen(-_LOST_SHARE * num_tokens)

    def _widen(self, num_tokens: float) -> None:
        step = _STEP * num_tokens / (self._mean_tokens or num_tokens)
        self.num_deviations = min(_MOST, max(_LEAST, self.num_deviations + step))
