"""How fast waiting requests leave, and so how long a new one would wait. Takes time as an
argument."""

import math

_MEMORY_S = 30.0
"""Departures of about so long ago count."""
_MIN_DEPARTURES = 2.0
"""With less evidence, whoever asks has a better guess."""


class DrainMeter:
    """The rate of departures over the time in which somebody waited: an idle queue says nothing."""

    def __init__(self) -> None:
        self._num_departures = 0.0
        self._waiting_s = 0.0
        self._seen_s: float | None = None
        """Until when the time is counted; None while nobody waits."""

    def departed(self, now_s: float) -> None:
        """A request that had to wait left."""
        self._count(now_s)
        self._num_departures += 1.0

    def set_waiting(self, now_s: float, *, is_waiting: bool) -> None:
        """Whether anybody waits from ``now_s`` on."""
        self._count(now_s)
        self._seen_s = now_s if is_waiting else None

    def rate_per_s(self, now_s: float) -> float | None:
        """None while too little is known."""
        self._count(now_s)
        if self._num_departures < _MIN_DEPARTURES or self._waiting_s <= 0.0:
            return None
        return self._num_departures / self._waiting_s

    def _count(self, now_s: float) -> None:
        if self._seen_s is None or now_s <= self._seen_s:
            return
        passed_s = now_s - self._seen_s
        kept = math.exp(-passed_s / _MEMORY_S)
        self._num_departures *= kept
        self._waiting_s = self._waiting_s * kept + _MEMORY_S * (1.0 - kept)
        self._seen_s = now_s
