"""Moving averages of step time and prefill speed, for the load view. Takes time as an argument."""

_WEIGHT = 0.1
"""Of the newest step: about the last twenty steps count."""


class LoadMeter:
    """Exponential moving averages over steps; idle time does not count."""

    def __init__(self) -> None:
        self.step_time_s = 0.0
        self._prefill_tokens = 0.0
        self._prefill_time_s = 0.0

    @property
    def prefill_tokens_per_s(self) -> float:
        """0 while unknown. Decodes in the same steps slow it, as they will slow the next prompt."""
        return self._prefill_tokens / self._prefill_time_s if self._prefill_time_s > 0 else 0.0

    def record(self, step_time_s: float, num_prefill_tokens: int) -> None:
        """Take in one executed step."""
        self.step_time_s = _average(self.step_time_s, step_time_s)
        if num_prefill_tokens > 0:
            self._prefill_tokens = _average(self._prefill_tokens, num_prefill_tokens)
            self._prefill_time_s = _average(self._prefill_time_s, step_time_s)


def _average(old: float, new: float) -> float:
    return new if old == 0 else old + _WEIGHT * (new - old)
