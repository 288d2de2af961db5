"""What a fleet of replicas takes: turns demand into *load*, in replicas.

A load of 3.2 needs 3.2 replicas, with the headroom that so many of them need for p99 targets. What
a replica takes follows from its steps (``throughput``), which the configuration tells, or else the
engines. Reads no clock; must not know forecasts.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from statistics import median

from autoscaler.config import ModelScalingConfig
from autoscaler.observation import Demand, ReplicaObservation
from autoscaler.throughput import RequestMix, StepCosts, Targets, max_rate, ttft_alone_s
from autoscaler.window import Totals
from engine.messages import LoadView

_FLEETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
"""Sizes for which a replica's rate is computed; between them it is interpolated."""
_RENEWED_S = 10.0
_COSTS_KEPT_S = 60.0
"""Time constant of what engines report."""
_BUSY_SHARE = 0.7
"""Of its slots that a replica may use whose steps are unknown."""
_DEFAULT_MIX = RequestMix(prompt_len=1000.0, uncached_len=1000.0, answer_len=200.0)
"""Until the first request."""
_LEAST_MIX = 20
"""Requests that a mix is made of."""
_LONGEST_TAIL = 12.0


class CapacityModel:
    """Owner of what is known of one model's replicas."""

    def __init__(self) -> None:
        self.costs: StepCosts | None = None
        self.mix = _DEFAULT_MIX
        self._slots_rate: float | None = None
        self._curve: list[tuple[float, float]] = []
        """(requests/s, replicas), rising; empty while nothing is known."""
        self._made_s = -math.inf
        self._made_of: ModelScalingConfig | None = None

    @property
    def is_known(self) -> bool:
        return bool(self._curve)

    def update(
        self,
        now_s: float,
        passed_s: float,
        config: ModelScalingConfig,
        replicas: Sequence[ReplicaObservation],
        totals: Totals,
        demand: Demand | None,
    ) -> None:
        """``replicas``: those that serve and aren't silent. ``totals``: of the last ten minutes."""
        self._learn_costs(passed_s, config, replicas)
        self._learn_mix(totals, demand)
        if now_s - self._made_s >= _RENEWED_S or config is not self._made_of or not self._curve:
            self._made_s, self._made_of = now_s, config
            self._renew(config)

    def load_of(self, rate: float) -> float | None:
        """Replicas that ``rate`` requests/s need; None while nothing is known of a replica."""
        if not self._curve:
            return 0.0 if rate == 0 else None
        at = bisect_left(self._curve, (rate, 0.0))
        high_rate, high = self._curve[min(at, len(self._curve) - 1)]
        if at in (0, len(self._curve)):
            return rate / high_rate * high
        low_rate, low = self._curve[at - 1]
        return low + (rate - low_rate) / (high_rate - low_rate) * (high - low)

    def rate_of(self, num_replicas: int) -> float | None:
        """Requests/s that each of so many replicas serves."""
        if not self._curve:
            return None
        num = max(1, num_replicas)
        at = bisect_left([replicas for _, replicas in self._curve], float(num))
        high_rate, high = self._curve[min(at, len(self._curve) - 1)]
        if at in (0, len(self._curve)) or high == num:
            return high_rate / high
        low_rate, low = self._curve[at - 1]
        return (low_rate + (num - low) / (high - low) * (high_rate - low_rate)) / num

    def backlog_replica_s(self, num_waiting: float, num_tokens: float, num_replicas: int) -> float:
        """Seconds of a replica that ``num_waiting`` requests take, with ``num_tokens`` of prompts
        (0: unknown)."""
        rate = self.rate_of(num_replicas)
        if rate is None or num_waiting <= 0:
            return 0.0
        length = num_tokens / num_waiting / self.mix.prompt_len if num_tokens > 0 else 1.0
        prefill, decode = self._shares()
        return num_waiting / rate * (prefill * min(length, _LONGEST_TAIL) + decode)

    def ttft_alone_s(self) -> float:
        """Of a mean prompt on an idle replica; 0 while unknown."""
        return 0.0 if self.costs is None else ttft_alone_s(self.costs, self.mix)

    def _shares(self) -> tuple[float, float]:
        """Of a request's work, prefill and decode."""
        if self.costs is None:
            return 0.5, 0.5
        costs, mix = self.costs, self.mix
        prefill_s = mix.uncached_len * (costs.prefill_token_s + costs.attended_s * mix.depth)
        decode_s = mix.answer_len * costs.decode_s
        total_s = prefill_s + decode_s
        return (prefill_s / total_s, decode_s / total_s) if total_s > 0 else (0.5, 0.5)

    def _learn_costs(
        self,
        passed_s: float,
        config: ModelScalingConfig,
        replicas: Sequence[ReplicaObservation],
    ) -> None:
        given = config.capacity.step_cost
        if given is not None:
            context = self.mix.prompt_len + self.mix.answer_len / 2
            self.costs = StepCosts(
                base_s=given.base_s,
                prefill_token_s=given.prefill_token_s,
                attended_s=given.attended_s,
                decode_s=given.decode_s + given.context_token_s * context,
                step_tokens=float(given.step_tokens),
                most_running=float(given.max_num_seqs),
            )
            return
        self._slots_rate = _rate_by_slots(replicas)
        reported = _reported_costs(replicas)
        if reported is None:
            return
        kept = math.exp(-passed_s / _COSTS_KEPT_S)
        self.costs = reported if self.costs is None else _blend(self.costs, reported, kept)

    def _learn_mix(self, totals: Totals, demand: Demand | None) -> None:
        if min(totals.num_arrived, totals.num_begun) < _LEAST_MIX:
            return
        prompt_len = max(1.0, totals.num_prompt_tokens / totals.num_arrived)
        ended = max(totals.num_ended, 1.0)
        tail = self.mix.prompt_tail
        if demand is not None and demand.prompt_len_p95 is not None:
            tail = min(_LONGEST_TAIL, max(1.0, demand.prompt_len_p95 / prompt_len))
        self.mix = RequestMix(
            prompt_len=prompt_len,
            uncached_len=min(prompt_len, totals.num_uncached_tokens / totals.num_begun),
            # While the first long answers run, more is generated than ends, and the other way
            # round after a peak: between the two.
            answer_len=max(1.0, totals.num_generated_tokens / max(ended, totals.num_begun)),
            prompt_tail=tail,
        )

    def _renew(self, config: ModelScalingConfig) -> None:
        given = config.capacity.requests_per_s
        if given is not None:
            self._curve = [(given, 1.0)]
        elif self.costs is not None:
            targets = Targets(config.ttft_target_s, config.tpot_target_s)
            self._curve = []
            for num in _FLEETS:
                rate = num * max_rate(self.costs, self.mix, targets, num)
                if rate > (self._curve[-1][0] if self._curve else 0.0):
                    self._curve.append((rate, float(num)))
        elif self._slots_rate is not None:
            self._curve = [(self._slots_rate, 1.0)]


def _reported_costs(replicas: Sequence[ReplicaObservation]) -> StepCosts | None:
    """The middle one of what engines have fitted to their own steps."""
    loads = [each.load for each in replicas if each.load is not None and _is_fitted(each.load)]
    decoding = [load for load in loads if load.num_running > 0]
    if not decoding:
        return None
    over_s = sum(max(0.0, load.decode_step_s - load.prefill_base_s) for load in decoding)
    num_decoding = sum(load.num_running for load in decoding)
    return StepCosts(
        base_s=median(load.prefill_base_s for load in loads),
        prefill_token_s=median(load.prefill_token_s for load in loads),
        attended_s=median(load.prefill_attended_s for load in loads),
        decode_s=over_s / num_decoding,
        step_tokens=float(median(load.full_step_tokens for load in loads)),
        most_running=_most_running(replicas),
    )


def _is_fitted(load: LoadView) -> bool:
    return load.prefill_base_s > 0 and load.prefill_token_s > 0 and load.full_step_tokens > 0


def _most_running(replicas: Sequence[ReplicaObservation]) -> float:
    slots = [each.max_num_seqs for each in replicas if each.max_num_seqs > 0]
    most = float(median(slots)) if slots else math.inf
    loads = [each.load for each in replicas if each.load is not None and each.load.num_running > 0]
    num_used = sum(max(0, load.num_blocks - load.num_free_blocks) for load in loads)
    if num_used:
        num_running = sum(load.num_running for load in loads)
        num_blocks = median(load.num_blocks for load in loads)
        most = min(most, max(1.0, num_blocks * num_running / num_used))
    return most if most < math.inf else 256.0


def _rate_by_slots(replicas: Sequence[ReplicaObservation]) -> float | None:
    """Requests/s of a replica whose steps are unknown: slots over the time that answers take."""
    rates = [
        each.max_num_seqs / each.load.mean_answer_s
        for each in replicas
        if each.load is not None and each.load.mean_answer_s > 0 and each.max_num_seqs > 0
    ]
    return _BUSY_SHARE * median(rates) if rates else None


def _blend(old: StepCosts, new: StepCosts, kept: float) -> StepCosts:
    names = StepCosts.__dataclass_fields__
    return StepCosts(
        *(kept * getattr(old, name) + (1 - kept) * getattr(new, name) for name in names)
    )
