"""When the events of each sample had been written to the client's socket.

What a client sees, not what an engine said: a slow reader's gaps are long. Knows no text and no
HTTP.
"""

import time
from collections.abc import Callable, Iterable

from app.bucket_counts import BucketCounts


class WriteTimes:
    """Of one streamed answer."""

    def __init__(
        self, num_samples: int, gaps: BucketCounts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``gaps`` gets the time between any two writes that brought something of one sample."""
        self._gaps = gaps
        self._clock = clock
        self._first_s: list[float | None] = [None] * num_samples
        self._last_s = [0.0] * num_samples

    def note(self, samples: Iterable[int]) -> None:
        """A write that held events of ``samples`` has just returned."""
        now_s = self._clock()
        for index in samples:
            if self._first_s[index] is None:
                self._first_s[index] = now_s
            else:
                self._gaps.observe(now_s - self._last_s[index])
            self._last_s[index] = now_s

    @property
    def first_s(self) -> float | None:
        """Of the whole answer; None while nothing has been written."""
        return min((first for first in self._first_s if first is not None), default=None)

    def span_s(self, samples: Iterable[int]) -> float | None:
        """From the first write of ``samples`` to their last one; None without any."""
        written = [
            (first_s, self._last_s[index])
            for index in samples
            if (first_s := self._first_s[index]) is not None
        ]
        if not written:
            return None
        return max(last_s for _, last_s in written) - min(first_s for first_s, _ in written)
