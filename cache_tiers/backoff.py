"""How long something that failed is left alone: twice as long each time, until it works again.

Must not know what failed.
"""

import time
from collections.abc import Callable


class Backoff:
    """Of one peer or store. Owner: its tier."""

    def __init__(
        self,
        min_s: float = 1.0,
        max_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._min_s = min_s
        self._max_s = max_s
        self._clock = clock
        self._next_s = min_s
        self._until_s = clock()

    @property
    def remaining_s(self) -> float:
        """0 when it may be tried."""
        return max(0.0, self._until_s - self._clock())

    def failed(self) -> float | None:
        """The seconds for which it is left alone now; ``None`` if it is already, since this was
        tried before that was known: one of many side by side counts.
        """
        if self.remaining_s > 0:
            return None
        pause_s = self._next_s
        self._until_s = self._clock() + pause_s
        self._next_s = min(2 * pause_s, self._max_s)
        return pause_s

    def succeeded(self) -> None:
        """Also ends no pause that has begun: what worked may have begun before."""
        self._next_s = self._min_s if self.remaining_s == 0 else self._next_s
