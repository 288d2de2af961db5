"""Holds readers of one source to a rate that they share. Must not know what is read."""

import time
from collections.abc import Callable
from threading import Lock


class Throttle:
    """Whoever has read waits for its turn; None: nobody does."""

    def __init__(
        self,
        max_bytes_per_s: float | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._bytes_per_s = max_bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._free_at_s = clock()
        self._lock = Lock()

    def pass_through(self, num_bytes: int) -> None:
        """Return when ``num_bytes`` more are allowed to have come; from any thread."""
        if self._bytes_per_s is None:
            return
        with self._lock:
            now_s = self._clock()
            self._free_at_s = max(self._free_at_s, now_s) + num_bytes / self._bytes_per_s
            wait_s = self._free_at_s - now_s
        self._sleep(wait_s)
