"""How fast prefixes come from one medium. Must not know what they are or from where.

    time = tokens / rate

The rate is the median of the last few transfers': one that waited for something else, as the first
one does for memory that nobody has touched, says nothing of the next. One coefficient: the delay
before the first byte is small beside what pays to be moved, and a second one could not be told from
it by transfers of like length.
"""

import math
from collections import deque
from statistics import median

_NUM_KEPT = 9
_SHORTEST_S = 1e-6


class TransferRate:
    """Owner of one coefficient."""

    __slots__ = ("_token_s",)

    def __init__(self) -> None:
        self._token_s: deque[float] = deque(maxlen=_NUM_KEPT)
        """Seconds of a token, in the last transfers."""

    @property
    def tokens_per_s(self) -> float:
        """0 while unknown."""
        return 1 / median(self._token_s) if self._token_s else 0.0

    def record(self, num_tokens: int, time_s: float) -> None:
        """Take in a transfer; one of nothing, or in no time, says nothing."""
        if num_tokens > 0 and _SHORTEST_S <= time_s < math.inf:
            self._token_s.append(time_s / num_tokens)
