"""After how long sessions come back, by kind: a distribution that forgets. Knows no sessions."""

import math

_BUCKETS_PER_DOUBLING = 4
_NUM_BUCKETS = 80
"""The last begins after about a week."""
_SHORTEST_S = 0.5
_DECAY = 0.998
"""Per pause: what was 350 pauses ago counts half."""
_MIN_PAUSES = 20.0
"""With fewer nothing is predicted."""
_MAX_KINDS = 64
"""More are taken together."""
_OTHER_KINDS = ""


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0.0] * _NUM_BUCKETS
        self.num_lost = 0.0
        """Never came back."""

    def add(self, bucket: int | None) -> None:
        self.counts = [_DECAY * count for count in self.counts]
        self.num_lost *= _DECAY
        if bucket is None:
            self.num_lost += 1
        else:
            self.counts[bucket] += 1

    def quantile_s(self, share: float) -> float | None:
        total = sum(self.counts) + self.num_lost
        if total < _MIN_PAUSES:
            return None
        left = share * total
        for bucket, count in enumerate(self.counts):
            if count and left <= count:
                begin_s = _begin_s(bucket)
                return begin_s + (left / count) * (_begin_s(bucket + 1) - begin_s)
            left -= count
        return math.inf


class ReturnTimes:
    """Owner: one node's cache."""

    def __init__(self) -> None:
        self._histograms: dict[str, _Histogram] = {}

    def record(self, kind: str, pause_s: float) -> None:
        """A session came back."""
        self._histogram(kind).add(_bucket(pause_s))

    def record_lost(self, kind: str) -> None:
        """One did not come back as long as it was remembered."""
        self._histogram(kind).add(None)

    def quantile_s(self, kind: str, share: float) -> float | None:
        """By when that share of sessions is back: infinite if so many never are, ``None`` while
        too little is known.
        """
        return self._histogram(kind).quantile_s(share)

    def _histogram(self, kind: str) -> _Histogram:
        if kind not in self._histograms and len(self._histograms) >= _MAX_KINDS:
            kind = _OTHER_KINDS
        return self._histograms.setdefault(kind, _Histogram())


def _bucket(pause_s: float) -> int:
    if pause_s <= _SHORTEST_S:
        return 0
    bucket = 1 + int(_BUCKETS_PER_DOUBLING * math.log2(pause_s / _SHORTEST_S))
    return min(_NUM_BUCKETS - 1, bucket)


def _begin_s(bucket: int) -> float:
    return 0.0 if bucket == 0 else _SHORTEST_S * 2.0 ** ((bucket - 1) / _BUCKETS_PER_DOUBLING)
