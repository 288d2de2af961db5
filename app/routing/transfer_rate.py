"""How fast prefixes come from one medium. Must not know what they are or from where.

    time = tokens / rate

Recursive least squares over relative errors (a transfer of a thousand tokens counts as much as
one of a million), with exponential forgetting. One coefficient: the delay before the first byte is
small beside what pays to be moved, and a second one could not be told from it by transfers of
like length.
"""

import math

_KEPT = 0.9
"""Of what is known, at each transfer: about the last ten count."""
_SHORTEST_S = 1e-6


class TransferRate:
    """Owner of one coefficient."""

    __slots__ = ("_information", "_moment")

    def __init__(self) -> None:
        self._information = 0.0
        self._moment = 0.0

    @property
    def tokens_per_s(self) -> float:
        """0 while unknown."""
        return self._moment / self._information if self._information > 0 else 0.0

    def record(self, num_tokens: int, time_s: float) -> None:
        """Take in a transfer; one of nothing, or in no time, says nothing."""
        if num_tokens <= 0 or not _SHORTEST_S <= time_s < math.inf:
            return
        # tokens = rate × time, each weighted by 1 / tokens: relative errors of the tokens.
        share = time_s / num_tokens
        self._information = _KEPT * self._information + share * share
        self._moment = _KEPT * self._moment + share
