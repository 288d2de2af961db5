"""Which share of what is computed somebody needs: padding is waste, and so is what is computed
again after a preemption. Takes time as an argument.
"""

import logging

from engine.rate_limit import RateLimit

logger = logging.getLogger(__name__)

LOW = 0.7
_KEPT = 0.99
"""Of the counts from step to step: about the last hundred steps count."""
_MIN_STEPS = 100
_WARNINGS_PER_S = 1 / 60


class BatchEfficiency:
    """Owner of the counts over the last steps."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._num_real = 0.0
        self._num_computed = 0.0
        self._num_again = 0.0
        self._warnings = RateLimit(burst=1, per_s=_WARNINGS_PER_S)

    @property
    def share(self) -> float:
        """Real tokens over computed ones, of the last steps; 1 before the first."""
        return self._num_real / self._num_computed if self._num_computed else 1.0

    def record(
        self, *, num_tokens: int, num_recomputed: int, num_padding: int, now_s: float
    ) -> None:
        """Take in a step of ``num_tokens`` planned tokens, recomputed ones among them. Warns, once
        a minute at most, when much is wasted.
        """
        self._num_steps += 1
        self._num_real = _KEPT * self._num_real + num_tokens - num_recomputed
        self._num_again = _KEPT * self._num_again + num_recomputed
        self._num_computed = _KEPT * self._num_computed + num_tokens + num_padding
        is_low = self._num_steps >= _MIN_STEPS and self.share < LOW
        if is_low and self._warnings.allows(now_s):
            logger.warning(
                "only %.0f %% of the tokens computed were needed: %.0f %% were computed again "
                "after a preemption (is kv_cache_bytes too small?), the others are padding",
                100 * self.share,
                100 * self._num_again / self._num_computed,
            )
