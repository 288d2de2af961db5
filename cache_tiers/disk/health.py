"""Whether something that failed is to be tried again, and one log line per change.

Must not know what is tried.
"""

import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0


class Health:
    """Of one kind of work, ``what``: pauses after a failure, for longer after each."""

    def __init__(self, what: str, clock: Callable[[], float]) -> None:
        self._what = what
        self._clock = clock
        self._pause_s = 0.0
        self._retry_at_s = 0.0
        self.reason = ""
        """Why it fails, for errors; empty while it works."""

    @property
    def is_open(self) -> bool:
        """Whether to try now."""
        return self._clock() >= self._retry_at_s

    def failed(self, error: OSError) -> None:
        """It can't be done now."""
        if not self.reason:
            logger.warning("%s fails (%s); it is tried again from time to time", self._what, error)
        self.reason = f"{self._what} fails ({error})"
        self._pause_s = min(max(2 * self._pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        self._retry_at_s = self._clock() + self._pause_s

    def succeeded(self) -> None:
        """It was done."""
        if self.reason:
            logger.warning("%s works again", self._what)
        self.reason = ""
        self._pause_s = self._retry_at_s = 0.0
