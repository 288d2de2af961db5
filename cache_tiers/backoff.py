"""Leaving alone what failed: twice as long each time, until it works again.

One log line when it begins to fail and one when it works again, counts for the rest. Must not know
what failed.
"""

import logging
import time
from collections.abc import Callable

from cache_tiers.tier import TierError

logger = logging.getLogger(__name__)


class Backoff:
    """Of one peer, one store, or one kind of work on a device. Owner: who uses it; one thread."""

    def __init__(
        self,
        name: str,
        min_s: float = 1.0,
        max_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
        *,
        is_silent: bool = False,
    ) -> None:
        """``is_silent``: what fails tells it itself."""
        self.num_failures = 0
        self.num_spared = 0
        """Calls that did not ask, since it had failed shortly before."""
        self.reason = ""
        """Why it fails, for errors; empty while it works."""
        self._name = name
        self._min_s = min_s
        self._max_s = max_s
        self._clock = clock
        self._level = logging.DEBUG if is_silent else logging.WARNING
        self._next_s = min_s
        self._until_s = clock()

    @property
    def is_open(self) -> bool:
        """Whether to try now."""
        return self._clock() >= self._until_s

    def check(self) -> None:
        """Raises ``TierError`` during a pause."""
        if (pause_s := self._until_s - self._clock()) > 0:
            self.num_spared += 1
            raise TierError(f"{self._name} failed shortly before; next try in {pause_s:.1f} s")

    def failed(self, why: str | OSError) -> TierError:
        """Begin a pause, if none is: of calls side by side that fail the first counts. Returns
        what to raise if nothing came of the call.
        """
        self.num_failures += 1
        was_working = not self.reason
        self.reason = f"{self._name}: {_line(str(why))}"
        if was_working:
            logger.log(self._level, "%s; it is tried again from time to time", self.reason)
        if self.is_open:
            self._until_s = self._clock() + self._next_s
            self._next_s = min(2 * self._next_s, self._max_s)
        return TierError(self.reason)

    def succeeded(self) -> None:
        """It works, and the next pause is short again; one that has begun goes on: what worked may
        be older.
        """
        if self.is_open:
            self._next_s = self._min_s
            if self.reason:
                self.reason = ""
                logger.log(self._level, "%s: works again", self._name)


def _line(words: str) -> str:
    """Strangers' words, on one line that shows no more than it says."""
    return "".join(char if char.isprintable() else " " for char in words)
