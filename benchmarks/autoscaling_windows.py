"""The day's simulation beside the whole simulator: two windows of ten minutes, around the busiest
and around the burst, of the same requests, on fleets that the same policy sizes; there with the
production scheduler, block manager, index and router.
"""

from collections.abc import Sequence

import msgspec
import numpy as np

from benchmarks.autoscaling_day import Capacity, DayPlan
from benchmarks.result import CaseResult
from simulator.fleet import FleetSpec, simulate
from simulator.performance import LinearModel
from simulator.replica_spec import DEFAULT_CONFIG, ReplicaSpec
from simulator.scaling.day_fleet import DayFleet, DaySpec
from simulator.scaling.day_workload import DayWorkload
from simulator.scaling.fleet_control import ScaledFleet
from simulator.scaling.fleet_scaler import FleetScaler
from simulator.scaling.rivals.last_value import LastValue
from simulator.scaling.view import ScalingSetting

AGREEMENT = 0.15
_SETTLING_S = 180.0
"""Caches fill; not scored."""
_BEFORE_S, _AFTER_S = 120.0, 480.0
"""Of the moment that a window is about."""
_SESSIONS_S = 480.0
"""Sessions that began so long before are under way."""


class WindowFigures(msgspec.Struct, frozen=True):
    """Of one simulation of one window."""

    ttft_p99_s: float
    tpot_p99_s: float
    hit_rate: float
    node_hours: float


class Window(msgspec.Struct, frozen=True):
    """The same requests in both simulations."""

    name: str
    num_requests: int
    num_replicas: int
    day: WindowFigures
    whole: WindowFigures

    @property
    def differences(self) -> dict[str, float]:
        """Of what the day's simulation says, relative to the whole simulator's."""
        pairs = (
            ("ttft_p99", self.day.ttft_p99_s, self.whole.ttft_p99_s),
            ("tpot_p99", self.day.tpot_p99_s, self.whole.tpot_p99_s),
        )
        return {name: abs(day / whole - 1) for name, day, whole in pairs}


def measure_windows(
    plan: DayPlan, spec: DaySpec, capacity: Capacity, lead_s: float
) -> list[Window]:
    """``capacity``: of the day; a larger plan gets replicas in proportion."""
    setting = capacity.setting(lead_s)
    return [
        _window(name, plan, spec, setting, at_s)
        for name, at_s in (("peak", plan.peak_s + _BEFORE_S), ("burst", plan.burst_s))
    ]


def window_cases(title: str, windows: Sequence[Window]) -> list[CaseResult]:
    results: list[CaseResult] = []
    for window in windows:
        name = f"{title}_{window.name}"
        for figure in ("ttft_p99_s", "tpot_p99_s", "hit_rate", "node_hours"):
            unit = {"hit_rate": "of prompt tokens", "node_hours": "hours"}.get(figure, "s")
            results.append(
                CaseResult(
                    case=f"{name}_{figure}",
                    value=getattr(window.day, figure),
                    unit=unit,
                    peer="whole simulator",
                    peer_value=getattr(window.whole, figure),
                )
            )
        results += [
            CaseResult(
                case=f"{name}_{figure}_difference", value=value, unit="relative", limit=AGREEMENT
            )
            for figure, value in window.differences.items()
        ]
    return results


def _window(
    name: str, plan: DayPlan, spec: DaySpec, setting: ScalingSetting, at_s: float
) -> Window:
    begin_s = at_s - _BEFORE_S - _SETTLING_S
    sessions_s = max(0.0, begin_s - _SESSIONS_S)
    made = plan.workload(sessions_s, at_s + _AFTER_S)
    workload = made.between(begin_s - sessions_s, at_s + _AFTER_S - sessions_s)
    rate = len(workload.between(begin_s - sessions_s, begin_s - sessions_s + 60.0)) / 60.0
    num_replicas = max(1, int(np.ceil(1.2 * rate / setting.replica_rps)))
    return Window(
        name,
        len(workload),
        num_replicas,
        _by_day(workload, spec, setting, num_replicas),
        _by_whole(workload, spec, setting, num_replicas),
    )


def _by_day(
    workload: DayWorkload, spec: DaySpec, setting: ScalingSetting, num_replicas: int
) -> WindowFigures:
    scaler = FleetScaler(LastValue(setting), setting)
    outcome = DayFleet(workload, spec, scaler, num_replicas).run()
    is_scored = workload.arrivals_s >= workload.arrivals_s[0] + _SETTLING_S
    tpots = outcome.tpot_s[is_scored]
    return _figures(
        outcome.ttft_s[is_scored].tolist(),
        tpots[~np.isnan(tpots)].tolist(),
        outcome.hit_rate,
        scaler.replica_s,
    )


def _by_whole(
    workload: DayWorkload, spec: DaySpec, setting: ScalingSetting, num_replicas: int
) -> WindowFigures:
    config = DEFAULT_CONFIG.model_copy(
        update={"max_num_batched_tokens": spec.max_step_tokens, "max_num_seqs": spec.max_seqs}
    )
    replica = ReplicaSpec(LinearModel(spec.cost), spec.num_kv_tokens, config)
    scaler = FleetScaler(LastValue(setting), setting)
    control = ScaledFleet(scaler, replica, spec.ttft_target_s, spec.tpot_target_s)
    outcome = simulate(workload.as_requests(), FleetSpec(num_replicas, replica), control)
    begin_s = float(workload.arrivals_s[0]) + _SETTLING_S
    scored = [request for request in outcome.requests if request.arrival_s >= begin_s]
    return _figures(
        [request.ttft_s for request in scored],
        [tpot for request in scored if (tpot := request.tpot_s) is not None],
        outcome.hit_rate,
        scaler.replica_s,
    )


def _figures(
    ttfts_s: Sequence[float], tpots_s: Sequence[float], hit_rate: float, replica_s: float
) -> WindowFigures:
    return WindowFigures(
        float(np.percentile(ttfts_s, 99)),
        float(np.percentile(tpots_s, 99)),
        hit_rate,
        replica_s / 3600,
    )
