"""The design case over a day, at 1/50 of its size: a 70B model under tensor parallelism 8, each
replica a node of eight H100s, a peak of 100 requests/s, and chat sessions of 15 turns.

Rates are those of a trace, scaled so that its busiest ten minutes are the peak, which a fleet of
one size is made for. Of its days the one is simulated whose mean is nearest to the whole trace's;
the last two hours of the day before come first and only warm policies up. At noon the load doubles
within a minute: as many sessions as are under way begin besides. Step times are the arithmetic of
`benchmarks.design_case`, and sessions are such that about as much of a prompt is found cached as is
assumed there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from benchmarks.design_case import DesignCase
from engine.performance_profile import StepCost
from simulator.scaling.day_fleet import DayFleet, DayOutcome, DaySpec
from simulator.scaling.day_workload import ChatShape, DayWorkload, make_day
from simulator.scaling.fleet_scaler import FleetScaler
from simulator.scaling.rate_trace import DAY_S, STEP_S, RateTrace, Vector
from simulator.scaling.view import ScalingPolicy, ScalingSetting, ScalingView, Wanted

PEAK_RPS = 100.0
SCALE = 50
WARM_UP_S = 7200.0
LEAD_S = 120.0
"""From nothing to serving, as published of a 70B model with compiled code cached."""
STAGED_LEAD_S = 20.0
"""The same from weights in the memory of a node that runs: processes, a third of a second for the
weights, communication between devices, and graphs, of which the last take most. A projection."""
STAGED_LATE_COST = 20.0
"""What that speed lets an operator ask for: fewer spare replicas."""
TTFT_TARGET_S, TPOT_TARGET_S = 0.7, 0.04
GOOD_SHARE = 0.995
SHAPE = ChatShape(num_system_tokens=512, user_tokens=950.0, user_sigma=1.2, max_history_tokens=4000)
_DRAW_S = 10.0
"""Sessions begin by rates that are constant so long."""
_BURST_LENGTH_S = 60.0
_MAX_STEP_TOKENS = 2048
_MINUTE_S = 60.0
_SETTLING_S = 180.0
_TRIAL_S = 600.0


def step_cost(case: DesignCase) -> StepCost:
    bandwidth = case.device_bytes_per_s * case.bandwidth_efficiency
    return StepCost(
        base_s=case.weights_s,
        per_prefill_token_s=1 / case.prefill_tokens_per_s,
        per_context_token_s=case.kv_token_bytes / bandwidth,
    )


def day_spec(case: DesignCase) -> DaySpec:
    return DaySpec(
        step_cost(case),
        case.kv_pool_bytes // case.kv_token_bytes,
        max_step_tokens=_MAX_STEP_TOKENS,
        ttft_target_s=TTFT_TARGET_S,
        tpot_target_s=TPOT_TARGET_S,
    )


def typical_day(trace: RateTrace) -> int:
    """Number of the day, from 1 on, whose mean is nearest to that of all."""
    steps = round(DAY_S / STEP_S)
    num_days = len(trace.rates) // steps
    means = trace.rates[: num_days * steps].reshape(num_days, steps).mean(axis=1)
    return 1 + int(np.abs(means[1:] - trace.rates.mean()).argmin())


def session_s(shape: ChatShape) -> float:
    """That a session lasts, usually."""
    return (shape.num_turns - 1) * (shape.think_s + shape.answer_tokens * shape.answer_token_s)


@dataclass(frozen=True, slots=True)
class DayPlan:
    """Which part of a trace is simulated, and at which size."""

    trace: RateTrace
    day: int
    shape: ChatShape = SHAPE
    peak_rps: float = PEAK_RPS
    warm_up_s: float = WARM_UP_S
    length_s: float = DAY_S

    @property
    def burst_s(self) -> float:
        """On the plan's clock, which begins with the warm-up."""
        return self.warm_up_s + self.length_s / 2

    @property
    def peak_s(self) -> float:
        """When the busiest step of what is scored begins."""
        first = round(self.day * DAY_S / STEP_S)
        scored = self.trace.rates[first : first + round(self.length_s / STEP_S)]
        return self.warm_up_s + int(scored.argmax()) * STEP_S

    def workload(
        self, begin_s: float = 0.0, end_s: float | None = None, seed: int = 0
    ) -> DayWorkload:
        """Of all of it, or of sessions that begin within that time."""
        end_s = self.warm_up_s + self.length_s if end_s is None else end_s
        at = np.arange(begin_s, end_s, _DRAW_S) + 0.5 * _DRAW_S
        steps = (self.day * DAY_S - self.warm_up_s + at) / STEP_S - 0.5
        middles = np.arange(len(self.trace.rates))
        factor = self.peak_rps / float(self.trace.rates.max())
        extra = np.maximum(self.trace.variances - self.trace.rates, 0.0)
        rates: Vector = np.interp(steps, middles, self.trace.rates) * factor
        at_burst_s = self.burst_s - begin_s
        bursts = []
        if 0 <= at_burst_s < end_s - begin_s:
            rate = float(rates[int(at_burst_s / _DRAW_S)])
            num_sessions = rate / self.shape.num_turns * session_s(self.shape)
            bursts.append((at_burst_s, _BURST_LENGTH_S, num_sessions))
        variances = np.interp(steps, middles, extra) * factor
        return make_day(
            self.shape, rates, _DRAW_S, extra_variances=variances, bursts=bursts, seed=seed
        )


class Fixed:
    """A ``ScalingPolicy`` of one size."""

    def __init__(self, num_replicas: int) -> None:
        self._num_replicas = num_replicas

    def size(self, view: ScalingView) -> Wanted:
        return Wanted(self._num_replicas)


class DayFigures(msgspec.Struct, frozen=True):
    """Of one policy over the scored day."""

    policy: str
    good_minutes: float
    """Share of the minutes in which both p99s are within their targets."""
    node_hours: float
    ttft_p99_s: float
    """Of all requests, like the next one."""
    tpot_p99_s: float
    hit_rate: float
    num_changes: int
    num_flaps: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """What replicas bear at the peak, found by trying."""

    num_replicas: int
    """The fewest that keep every minute of the peak within the targets."""
    replica_rps: float
    replica_concurrency: float
    """Requests in each then."""

    def setting(
        self,
        lead_s: float,
        wake_s: float = 0.0,
        parked_cost: float = 1.0,
        late_cost: float | None = None,
    ) -> ScalingSetting:
        return ScalingSetting(
            self.replica_rps,
            lead_s,
            tick_s=1.0,
            wake_s=wake_s,
            parked_cost=parked_cost,
            replica_concurrency=self.replica_concurrency,
            max_replicas=2 * self.num_replicas,
            late_cost=late_cost,
        )


def run_day(
    workload: DayWorkload,
    spec: DaySpec,
    name: str,
    create: Callable[[ScalingSetting], ScalingPolicy],
    setting: ScalingSetting,
    num_replicas: int,
    warm_up_s: float = WARM_UP_S,
) -> DayFigures:
    """``num_replicas``: at the beginning of the warm-up."""
    scaler = FleetScaler(create(setting), setting)
    fleet = DayFleet(workload, spec, scaler, num_replicas, scored_from_s=warm_up_s)
    outcome = fleet.run()
    is_scored = workload.arrivals_s >= warm_up_s
    return DayFigures(
        policy=name,
        good_minutes=good_share(workload.arrivals_s, outcome, warm_up_s),
        node_hours=scaler.replica_s / 3600,
        ttft_p99_s=float(np.percentile(outcome.ttft_s[is_scored], 99)),
        tpot_p99_s=float(np.nanpercentile(outcome.tpot_s[is_scored], 99)),
        hit_rate=outcome.hit_rate,
        num_changes=scaler.num_changes,
        num_flaps=scaler.num_flaps,
    )


def good_share(arrivals_s: Vector, outcome: DayOutcome, begin_s: float) -> float:
    """Of the minutes from ``begin_s`` on, by when requests came."""
    minutes = ((arrivals_s - begin_s) // _MINUTE_S).astype(np.int64)
    first = int(np.searchsorted(minutes, 0))
    edges = np.searchsorted(minutes, np.arange(int(minutes[-1]) + 2))
    good: list[bool] = []
    for begin, end in pairwise(edges.tolist()):
        if begin < first or begin == end:
            continue
        ttft = np.percentile(outcome.ttft_s[begin:end], 99)
        tpots = outcome.tpot_s[begin:end]
        tpots = tpots[~np.isnan(tpots)]
        tpot = np.percentile(tpots, 99) if len(tpots) else 0.0
        good.append(bool(ttft < TTFT_TARGET_S and tpot < TPOT_TARGET_S))
    return sum(good) / len(good)


def steady(shape: ChatShape, rps: float, length_s: float) -> DayWorkload:
    """The same rate all the time, once sessions of all ages are under way."""
    settled_s = 2 * session_s(shape)
    num = round((settled_s + length_s) / _DRAW_S)
    return make_day(shape, np.full(num, rps), _DRAW_S).between(settled_s, settled_s + length_s)


@dataclass(frozen=True, slots=True)
class Trial:
    """A fleet of one size under a load that stays."""

    num_replicas: int
    is_held: bool
    """All minutes are good."""
    num_open: float
    """Requests that are there, in the mean."""
    ttft_p99_s: float
    tpot_p99_s: float
    hit_rate: float


def try_fleet(
    shape: ChatShape, spec: DaySpec, rps: float, num_replicas: int, length_s: float = _TRIAL_S
) -> Trial:
    workload = steady(shape, rps, length_s)
    scaler = FleetScaler(Fixed(num_replicas), ScalingSetting(1.0, 0.0, tick_s=1.0))
    outcome = DayFleet(workload, spec, scaler, num_replicas).run()
    arrivals_s = workload.arrivals_s
    begin_s = float(arrivals_s[0]) + _SETTLING_S
    is_scored = arrivals_s >= begin_s
    open_s = outcome.ttft_s + np.nan_to_num(outcome.tpot_s) * (workload.answers - 1)
    return Trial(
        num_replicas,
        good_share(arrivals_s, outcome, begin_s) == 1.0,
        float(open_s.sum()) / float(arrivals_s[-1] - arrivals_s[0]),
        float(np.percentile(outcome.ttft_s[is_scored], 99)),
        float(np.nanpercentile(outcome.tpot_s[is_scored], 99)),
        outcome.hit_rate,
    )


def fewest(
    shape: ChatShape, spec: DaySpec, rps: float, length_s: float = _TRIAL_S, first: int = 1
) -> Trial:
    """The smallest fleet that holds; ``first``: where the search begins."""
    trial = try_fleet(shape, spec, rps, first, length_s)
    while not trial.is_held:
        num_replicas = trial.num_replicas + max(1, trial.num_replicas // 6)
        trial = try_fleet(shape, spec, rps, num_replicas, length_s)
    while trial.num_replicas > 1:
        fewer = try_fleet(shape, spec, rps, trial.num_replicas - 1, length_s)
        if not fewer.is_held:
            break
        trial = fewer
    return trial


def calibrate(
    shape: ChatShape, spec: DaySpec, peak_rps: float = PEAK_RPS, length_s: float = _TRIAL_S
) -> Capacity:
    """The static peak, and the most that each of its replicas bears."""
    held = fewest(shape, spec, peak_rps, length_s, first=max(1, round(peak_rps / 12)))
    low, high = peak_rps, 1.3 * peak_rps
    for _ in range(4):
        rps = (low + high) / 2
        trial = try_fleet(shape, spec, rps, held.num_replicas, length_s)
        if trial.is_held:
            low, held = rps, trial
        else:
            high = rps
    num = held.num_replicas
    return Capacity(num, low / num, held.num_open / num)
