"""Leaving alone what failed: twice as long each time, until it works again.

One log line for each pause, a count for the rest. Must not know what failed.
"""

import logging
import time
from collections.abc import Callable

from cache_tiers.tier import TierError

logger = logging.getLogger(__name__)


class Backoff:
    """Of one peer or store. Owner: its tier."""

    def __init__(
        self,
        name: str,
        min_s: float = 1.0,
        max_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_failures = 0
        self.num_spared = 0
        """Calls that did not ask, since it had failed shortly before."""
        self._name = name
        self._min_s = min_s
        self._max_s = max_s
        self._clock = clock
        self._next_s = min_s
        self._until_s = clock()

    def check(self) -> None:
        """Raises ``TierError`` during a pause."""
        if (pause_s := self._until_s - self._clock()) > 0:
            self.num_spared += 1
            raise TierError(f"{self._name} failed shortly before; next try in {pause_s:.1f} s")

    def failed(self, reason: str) -> TierError:
        """Begin a pause, if none is: of calls side by side that fail the first counts. Returns
        what to raise if nothing came of the call.
        """
        self.num_failures += 1
        now_s = self._clock()
        if now_s >= self._until_s:
            logger.warning(
                "%s: %s; prompts do without it for %g s", self._name, reason, self._next_s
            )
            self._until_s = now_s + self._next_s
            self._next_s = min(2 * self._next_s, self._max_s)
        return TierError(f"{self._name}: {reason}")

    def succeeded(self) -> None:
        """The next pause is short again; one that has begun goes on: what worked may be older."""
        if self._clock() >= self._until_s:
            self._next_s = self._min_s
