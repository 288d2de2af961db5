"""Moving averages of step time, prefill speed and answer time, for the load view. Takes time as an
argument.
"""

_STEP_WEIGHT = 0.1
"""Of the newest step: about the last twenty steps count."""
_ANSWER_WEIGHT = 0.05
"""Of the newest answer: lengths differ, so that more of them count than steps."""
_PREFILL_WINDOW_TOKENS = 2048
"""About so many of the last prefill tokens count."""


class LoadMeter:
    """Exponential moving averages over executed steps; idle time does not count."""

    def __init__(self) -> None:
        self.step_time_s = 0.0
        self.prefill_tokens_per_s = 0.0
        """0 while unknown. Decodes in the same steps slow it, as they will slow the next prompt."""

        self.mean_answer_s = 0.0
        """From a sequence's first admission to its end; 0 while unknown."""

    def record_answer(self, answer_s: float) -> None:
        """Take in the time of one sequence that ended, however it did."""
        self.mean_answer_s = _average(self.mean_answer_s, answer_s, _ANSWER_WEIGHT)

    def record(self, step_time_s: float, num_prefill_tokens: int) -> None:
        """Take in one executed step."""
        self.step_time_s = _average(self.step_time_s, step_time_s, _STEP_WEIGHT)
        if num_prefill_tokens > 0 and step_time_s > 0:
            # Weighted by tokens: the last few tokens of a cached prompt say little about speed.
            weight = min(1.0, num_prefill_tokens / _PREFILL_WINDOW_TOKENS)
            speed = num_prefill_tokens / step_time_s
            self.prefill_tokens_per_s = _average(self.prefill_tokens_per_s, speed, weight)

    def record_alike(self, step_time_s: float, num_steps: int) -> None:
        """As ``record``, of so many steps without prefill that took ``step_time_s`` each."""
        weight = 1 - (1 - _STEP_WEIGHT) ** num_steps
        self.step_time_s = _average(self.step_time_s, step_time_s, weight)


def _average(old: float, new: float, weight: float) -> float:
    return new if old == 0 else old + weight * (new - old)
