"""A percentile of lengths seen in the last minutes, from histograms that arrive piece by piece.

Must not know what is measured.
"""

from collections import deque
from collections.abc import Sequence

from app.autoscaling_messages import BUCKETS_PER_OCTAVE

WINDOW_S = 300.0
_PIECE_S = 15.0
LEAST_VALUES = 20
"""Of fewer a 95th percentile says nothing."""


class LengthWindow:
    """Counts of ``WINDOW_S``, in pieces that are forgotten one at a time."""

    def __init__(self, num_buckets: int) -> None:
        self._total = [0.0] * num_buckets
        self._pieces: deque[tuple[float, list[float]]] = deque()

    def add(self, counts: Sequence[float], now_s: float) -> None:
        """``counts``: of the values since the last call."""
        while self._pieces and now_s - self._pieces[0][0] > WINDOW_S:
            _, old = self._pieces.popleft()
            self._total = [total - count for total, count in zip(self._total, old, strict=True)]
        if not self._pieces or now_s - self._pieces[-1][0] >= _PIECE_S:
            self._pieces.append((now_s, [0.0] * len(self._total)))
        newest = self._pieces[-1][1]
        for bucket, count in enumerate(counts):
            if count:
                newest[bucket] += count
                self._total[bucket] += count

    def percentile(self, share: float) -> float | None:
        """The upper end of the bucket in which that share of the values is reached."""
        num_values = sum(self._total)
        if num_values < LEAST_VALUES:
            return None
        reached = 0.0
        for bucket, count in enumerate(self._total):
            reached += count
            if reached >= share * num_values:
                return float(2 ** (bucket / BUCKETS_PER_OCTAVE))
        return float(2 ** ((len(self._total) - 1) / BUCKETS_PER_OCTAVE))


def num_above(counts: Sequence[float], value: float) -> float:
    """Roughly how many values of a histogram exceed ``value``, in its units."""
    num, low = 0.0, 0.0
    for bucket, count in enumerate(counts):
        high = 2 ** (bucket / BUCKETS_PER_OCTAVE)
        is_last = bucket == len(counts) - 1
        if low >= value or (is_last and count):
            num += count
        elif high > value:
            num += count * (high - value) / (high - low)
        low = high
    return num
