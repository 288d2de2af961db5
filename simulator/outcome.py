"""What became of the requests of a simulation, and the figures that sum it up. Must not know how a
fleet works.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from simulator.errors import SimulationError


@dataclass(slots=True)
class RequestOutcome:
    """One request that was answered whole. Times are those of the virtual clock."""

    request_id: str
    engine_id: str
    arrival_s: float
    first_token_s: float
    end_s: float
    num_prompt_tokens: int
    num_answer_tokens: int
    num_cached_tokens: int = 0
    """Of the prompt, that were not computed: held by the accelerator, or loaded to it."""
    num_loaded_tokens: int = 0
    """Of those, what came from a tier or a peer."""
    num_restarts: int = 0
    """Replicas that were lost amid it."""

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.arrival_s

    @property
    def tpot_s(self) -> float | None:
        """None for an answer of one token."""
        if self.num_answer_tokens < 2:
            return None
        return (self.end_s - self.first_token_s) / (self.num_answer_tokens - 1)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Of one figure over requests."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a whole simulation."""

    requests: Sequence[RequestOutcome]
    """In the order in which they ended."""
    num_refused: int = 0
    """Longer than any replica can hold, or there was none."""
    replica_s: float = 0.0
    """Time that replicas were there, all together."""
    num_preemptions: int = 0
    engine_ids: Sequence[str] = ()
    """Of all replicas there ever were, also of those that nothing was sent to."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of what else happened, by name, such as tokens loaded by source."""

    def __post_init__(self) -> None:
        if not self.requests:
            raise SimulationError("no request was answered: there is nothing to sum up")

    @property
    def ttft_s(self) -> Distribution:
        return distribution(request.ttft_s for request in self.requests)

    @property
    def tpot_s(self) -> Distribution | None:
        """None if all answers are of one token."""
        times = [tpot for request in self.requests if (tpot := request.tpot_s) is not None]
        return distribution(times) if times else None

    @property
    def hit_rate(self) -> float:
        """Share of the prompt tokens that were not computed."""
        num_tokens = sum(request.num_prompt_tokens for request in self.requests)
        return sum(request.num_cached_tokens for request in self.requests) / num_tokens

    @property
    def duration_s(self) -> float:
        """From the first arrival to the last end."""
        begin_s = min(request.arrival_s for request in self.requests)
        return max(request.end_s for request in self.requests) - begin_s

    @property
    def answer_tokens_per_s(self) -> float:
        return sum(r.num_answer_tokens for r in self.requests) / max(1e-9, self.duration_s)

    def share_under(self, ttft_s: float) -> float:
        """Of the requests whose first token came sooner than that."""
        return sum(r.ttft_s < ttft_s for r in self.requests) / len(self.requests)

    @property
    def request_imbalance(self) -> float:
        """Requests of the busiest replica over the mean of all."""
        return self._imbalance(lambda _: 1)

    @property
    def prefill_imbalance(self) -> float:
        """Prompt tokens computed by the busiest replica over the mean of all."""
        return self._imbalance(lambda r: r.num_prompt_tokens - r.num_cached_tokens)

    def cost(self, price_per_hour: float, num_devices: int = 1) -> float:
        """Of all replicas, of ``num_devices`` each."""
        return self.replica_s / 3600 * num_devices * price_per_hour

    def _imbalance(self, weight: Callable[[RequestOutcome], int]) -> float:
        weights: Counter[str] = Counter()
        for request in self.requests:
            weights[request.engine_id] += weight(request)
        num_engines = len(set(self.engine_ids) | set(weights))
        total = sum(weights.values())
        return max(weights.values()) * num_engines / total if total else 1.0


def distribution(values: Iterable[float]) -> Distribution:
    """Percentiles are values that occur: the lowest with at least that share at or below it.

    Precondition: there is at least one value.
    """
    ordered = sorted(values)

    def at(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return Distribution(fmean(ordered), at(0.5), at(0.9), at(0.95), at(0.99))
