"""How fast each medium is, learned from its transfers: a latency and seconds per byte.

A weighted least-squares line through (bytes, seconds): old transfers count less, errors count
relative to the time that such a transfer usually takes; a few made-up transfers hold it until there
are real ones. Times are skewed: most transfers take about as long as each other, some many times
that, since the machine did something else. So a surprise counts as a small one, and one after the
other in the same direction as ever larger ones: the line stays near the median, and a medium that
changed is believed soon. Bytes that wait before a transfer count as its own: media work one request
after the other.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from cache_tiers.tier import TierKind

_DECAY = 0.9
_MAX_ALIKE = 50
"""Then whatever comes is believed."""
_SURPRISE = 1.2
"""Times as long as expected, or as short."""
_LONGEST_SILENCE_S = 1.0
"""A medium that brings nothing for so long is taken to hang, until it brings something."""
_PRIOR_WEIGHT = 0.5
_LEAST_PRIOR_WEIGHT = 0.02
"""So that transfers of one size alone leave a line."""
_PRIOR_BYTES = (64 * 1024, 64 * 1024**2)


@dataclass(frozen=True, slots=True)
class MediumRate:
    """Of a transfer that waits for nothing."""

    latency_s: float
    byte_s: float

    def seconds(self, num_bytes: float) -> float:
        return self.latency_s + num_bytes * self.byte_s if num_bytes else 0.0


PRIOR_RATES: Mapping[TierKind, MediumRate] = {
    TierKind.HOST: MediumRate(2e-4, 1 / 10e9),
    TierKind.DISK: MediumRate(1e-3, 1 / 1.5e9),
    TierKind.PEER: MediumRate(2e-3, 1 / 1e9),
    TierKind.OBJECT: MediumRate(50e-3, 1 / 100e6),
}


class _Line:
    """Sums of a weighted regression of seconds on bytes."""

    def __init__(self, prior: MediumRate) -> None:
        self._usual = prior
        self._sums = [0.0] * 5
        self._prior = [0.0] * 5
        for num_bytes in _PRIOR_BYTES:
            self._add(self._prior, num_bytes, prior.seconds(num_bytes))
        self._prior_weight = _PRIOR_WEIGHT
        self.rate = prior
        self._direction = 0
        """Of the last surprise: 1 for slower; 0: it was none."""
        self._num_alike = 0
        """Surprises in that direction, one after the other."""

    def observe(self, num_bytes: int, seconds: float) -> None:
        seconds = self._tempered(num_bytes, seconds)
        self._sums = [_DECAY * value for value in self._sums]
        self._prior_weight = max(_LEAST_PRIOR_WEIGHT, self._prior_weight * _DECAY)
        self._add(self._sums, num_bytes, seconds)
        weight, x, y, xx, xy = (
            value + self._prior_weight * prior
            for value, prior in zip(self._sums, self._prior, strict=True)
        )
        slope = (weight * xy - x * y) / (weight * xx - x * x)
        latency_s = (y - slope * x) / weight
        if slope <= 0 or latency_s < 0:  # noise: the best line through nothing takes no time
            slope, latency_s = xy / xx, 0.0
        self.rate = MediumRate(latency_s, slope)

    def _tempered(self, num_bytes: int, seconds: float) -> float:
        expected_s = self.rate.seconds(num_bytes)
        direction = (seconds > expected_s * _SURPRISE) - (seconds < expected_s / _SURPRISE)
        is_alike = direction != 0 and direction == self._direction
        self._num_alike = self._num_alike + 1 if is_alike else 1
        self._direction = direction
        most = _SURPRISE ** min(self._num_alike, _MAX_ALIKE)
        return min(max(seconds, expected_s / most), expected_s * most)

    def _add(self, sums: list[float], num_bytes: float, seconds: float) -> None:
        # By the seconds themselves, a medium that slows down would be believed last.
        weight = 1 / self._usual.seconds(num_bytes) ** 2
        terms = (1.0, num_bytes, seconds, num_bytes**2, num_bytes * seconds)
        for position, term in enumerate(terms):
            sums[position] += weight * term


class MediaRates:
    """Of one node."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lines = {kind: _Line(prior) for kind, prior in PRIOR_RATES.items()}
        self._waiting_bytes = dict.fromkeys(TierKind, 0)
        self._last_news_s = dict.fromkeys(TierKind, 0.0)
        """When something came, or all that was asked for had come."""

    def rate(self, kind: TierKind) -> MediumRate:
        return self._lines[kind].rate

    def waiting_s(self, kind: TierKind) -> float:
        """Until what was asked of the medium before would be done: infinite while it hangs."""
        if self.is_hanging(kind):
            return math.inf
        return self._waiting_bytes[kind] * self._lines[kind].rate.byte_s

    def is_hanging(self, kind: TierKind) -> bool:
        """A device that hangs gives no error, and would take ever more of the arena with it."""
        silence_s = self._clock() - self._last_news_s[kind]
        return self._waiting_bytes[kind] > 0 and silence_s > _LONGEST_SILENCE_S

    def begin(self, kind: TierKind, num_bytes: int) -> int:
        """A transfer was asked for; all bytes that have to be moved until it is done."""
        if not self._waiting_bytes[kind]:
            self._last_news_s[kind] = self._clock()
        self._waiting_bytes[kind] += num_bytes
        return self._waiting_bytes[kind]

    def end(self, kind: TierKind, num_bytes: int, total_bytes: int, seconds: float | None) -> None:
        """The transfer is over; ``total_bytes`` is what ``begin`` said. ``None``: it failed."""
        self._waiting_bytes[kind] -= num_bytes
        self._last_news_s[kind] = self._clock()
        if seconds is not None:
            self.observe(kind, total_bytes, seconds)

    def observe(self, kind: TierKind, num_bytes: int, seconds: float) -> None:
        self._lines[kind].observe(num_bytes, seconds)
