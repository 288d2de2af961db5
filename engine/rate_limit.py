"""How often something may be asked for. Takes time as an argument."""


class RateLimit:
    """A bucket of ``burst`` that fills again with ``per_s``."""

    def __init__(self, *, burst: int, per_s: float) -> None:
        self._burst = burst
        self._per_s = per_s
        self._num_left = float(burst)
        self._counted_s: float | None = None

    def allows(self, now_s: float) -> bool:
        """Whether one more is fine now; counts it then."""
        if self._counted_s is not None:
            gained = (now_s - self._counted_s) * self._per_s
            self._num_left = min(self._burst, self._num_left + gained)
        self._counted_s = now_s
        if self._num_left < 1:
            return False
        self._num_left -= 1
        return True
