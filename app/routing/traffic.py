"""How much one gateway sends: what it takes the others to send, too. Takes time as an argument."""

import math

_PERIOD_S = 30.0
"""About so long back requests count."""
_SHORTEST_S = 1.0
"""A burst at the start is no rate."""


class TrafficMeter:
    """Exponentially weighted means over time.

    The first request counts, too, though no time passed before it: a burst that begins at several
    gateways must not find each of them expecting nothing of the others.
    """

    def __init__(self) -> None:
        self._num_requests = 0.0
        self._num_tokens = 0.0
        self._weight_s = 0.0
        """Seconds of the past, each weighted like its requests."""
        self._last_s: float | None = None

    def record(self, now_s: float, num_uncached_tokens: int) -> None:
        """A request was sent that has ``num_uncached_tokens`` to be computed."""
        if self._last_s is None or now_s < self._last_s:
            self._num_requests = self._num_tokens = self._weight_s = 0.0
            self._last_s = now_s
        self._pass(now_s)
        self._num_requests += 1.0
        self._num_tokens += num_uncached_tokens

    def requests_per_s(self, now_s: float) -> float:
        """0 until there was one."""
        if self._last_s is None:
            return 0.0
        self._pass(now_s)
        return self._num_requests / max(self._weight_s, _SHORTEST_S)

    @property
    def mean_uncached_tokens(self) -> float:
        """Of a request."""
        return self._num_tokens / self._num_requests if self._num_requests > 0 else 0.0

    def _pass(self, now_s: float) -> None:
        assert self._last_s is not None
        passed_s = max(0.0, now_s - self._last_s)  # a clock that steps back counts as standing
        self._last_s = max(self._last_s, now_s)
        kept = math.exp(-passed_s / _PERIOD_S)
        self._num_requests *= kept
        self._num_tokens *= kept
        self._weight_s = self._weight_s * kept + _PERIOD_S * (1.0 - kept)
