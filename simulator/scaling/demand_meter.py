"""What gateways would have told the autoscaler of the tick that ends. Owner of the counts since the
last one; must not know fleets or policies.
"""

from collections import deque

from autoscaler.observation import Demand

_RECENT = 2000
"""Requests whose lengths count."""
_RENEWED_TICKS = 30


class DemandMeter:
    """Of one model."""

    def __init__(self, ttft_target_s: float, tpot_target_s: float) -> None:
        self._ttft_target_s, self._tpot_target_s = ttft_target_s, tpot_target_s
        self._prompt_lens: deque[int] = deque(maxlen=_RECENT)
        self._answer_lens: deque[int] = deque(maxlen=_RECENT)
        self._prompt_p95: float | None = None
        self._answer_p95: float | None = None
        self._num_ticks = 0
        self._num_generated = 0
        self._clear()

    def arrive(self, num_prompt_tokens: int) -> None:
        self.num_arrived += 1
        self._num_prompt += num_prompt_tokens
        self._prompt_lens.append(num_prompt_tokens)

    def begin(self, num_uncached_tokens: int, ttft_s: float) -> None:
        """The first token is there."""
        self._num_begun += 1
        self._num_uncached += num_uncached_tokens
        self._num_ttft_late += ttft_s > self._ttft_target_s

    def end(self, num_answer_tokens: int, answer_s: float) -> None:
        """``answer_s``: from the first token to the last."""
        self._num_ended += 1
        self._answer_lens.append(num_answer_tokens)
        self._num_tpot_late += answer_s > self._tpot_target_s * (num_answer_tokens - 1)

    def demand(self, period_s: float, num_generated: int) -> Demand:
        """``num_generated``: tokens by all replicas there ever were."""
        if self._num_ticks % _RENEWED_TICKS == 0:
            self._prompt_p95 = _p95(self._prompt_lens)
            self._answer_p95 = _p95(self._answer_lens)
        return Demand(
            period_s=period_s,
            num_arrived=self.num_arrived,
            num_prompt_tokens=self._num_prompt,
            num_uncached_tokens=self._num_uncached,
            num_generated_tokens=max(0, num_generated - self._num_generated),
            num_begun=self._num_begun,
            num_ended=self._num_ended,
            num_ttft_late=self._num_ttft_late,
            num_tpot_late=self._num_tpot_late,
            prompt_len_p95=self._prompt_p95,
            answer_len_p95=self._answer_p95,
        )

    def turn(self, num_generated: int) -> None:
        """The tick is over."""
        self._num_ticks += 1
        self._num_generated = num_generated
        self._clear()

    def _clear(self) -> None:
        self.num_arrived = self._num_prompt = self._num_uncached = 0
        self._num_begun = self._num_ended = 0
        self._num_ttft_late = self._num_tpot_late = 0


def _p95(lengths: deque[int]) -> float | None:
    if not lengths:
        return None
    return float(sorted(lengths)[int(0.95 * (len(lengths) - 1))])
