"""The design case's day with every policy, as figures of a result file: ours beside a fleet of one
size and beside last value, and what others cost.
"""

from collections.abc import Callable, Sequence
from functools import partial

from benchmarks.autoscaling_day import (
    GOOD_SHARE,
    LEAD_S,
    STAGED_LATE_COST,
    STAGED_LEAD_S,
    TPOT_TARGET_S,
    TTFT_TARGET_S,
    Capacity,
    DayFigures,
    DayPlan,
    Fixed,
    calibrate,
    run_day,
)
from benchmarks.autoscaling_rates import PARKED_COST, WAKE_S
from benchmarks.result import CaseResult
from simulator.scaling.day_fleet import DaySpec
from simulator.scaling.headwater import Headwater
from simulator.scaling.rivals.knative import Knative
from simulator.scaling.rivals.last_value import LastValue
from simulator.scaling.rivals.ray_default import RayDefault
from simulator.scaling.view import ScalingPolicy, ScalingSetting

_OURS, _PEER, _STATIC = "headwater", "last_value", "static_peak"
_RAY_TARGETS = (0.4, 0.6, 0.8)
"""Shares of the requests that are in a replica at its full load."""
_COST_OF_STATIC, _COST_OF_PEER = 0.45, 0.97


def measure_day(plan: DayPlan, spec: DaySpec, *, is_short: bool) -> list[CaseResult]:
    """Every policy on the same requests; ``is_short``: fewer policies."""
    capacity = calibrate(plan.shape, spec, plan.peak_rps)
    setting = capacity.setting(LEAD_S)
    print(capacity, flush=True)
    workload = plan.workload()

    def run(
        name: str,
        create: Callable[[ScalingSetting], ScalingPolicy],
        setting: ScalingSetting = setting,
    ) -> DayFigures:
        figures = run_day(
            workload, spec, name, create, setting, capacity.num_replicas, plan.warm_up_s
        )
        print(figures, flush=True)
        return figures

    static = run(_STATIC, lambda _: Fixed(capacity.num_replicas))
    peer = run(_PEER, LastValue)
    ours = run(_OURS, Headwater)
    others = [run("knative", partial(Knative, by_concurrency=True))]
    staged: list[CaseResult] = []
    if not is_short:
        setting_staged = capacity.setting(STAGED_LEAD_S, late_cost=STAGED_LATE_COST)
        staged_peer = run(f"{_PEER}_staged", LastValue, setting_staged)
        staged = _ours(run(f"{_OURS}_staged", Headwater, setting_staged), staged_peer, static)
        others.append(staged_peer)
        others.append(
            run("headwater_shared", Headwater, capacity.setting(LEAD_S, WAKE_S, PARKED_COST))
        )
        rays = [
            run(f"ray_default_{share:g}", partial(RayDefault, target=share))
            for share in _RAY_TARGETS
        ]
        others += rays
    return [
        *_ours(ours, peer, static),
        *staged,
        *_capacity_cases(capacity),
        *_others([static, peer, *others]),
    ]


def _ours(ours: DayFigures, peer: DayFigures, static: DayFigures) -> list[CaseResult]:
    return [
        CaseResult(
            case=f"day_{ours.policy}_bad_minutes",
            value=1 - ours.good_minutes,
            unit="share",
            peer=peer.policy,
            peer_value=1 - peer.good_minutes,
            limit=1 - GOOD_SHARE,
        ),
        CaseResult(
            case=f"day_{ours.policy}_node_hours",
            value=ours.node_hours,
            unit="hours",
            peer=_STATIC,
            peer_value=static.node_hours,
            limit=_COST_OF_STATIC * static.node_hours,
        ),
        CaseResult(
            case=f"day_{ours.policy}_node_hours_beside_last_value",
            value=ours.node_hours,
            unit="hours",
            peer=peer.policy,
            peer_value=peer.node_hours,
            limit=_COST_OF_PEER * peer.node_hours,
        ),
        *_latencies(ours),
    ]


def _others(runs: Sequence[DayFigures]) -> list[CaseResult]:
    return [
        case
        for run in runs
        for case in (
            CaseResult(
                case=f"day_{run.policy}_bad_minutes", value=1 - run.good_minutes, unit="share"
            ),
            CaseResult(case=f"day_{run.policy}_node_hours", value=run.node_hours, unit="hours"),
            *_latencies(run),
        )
    ]


def _latencies(run: DayFigures) -> list[CaseResult]:
    title = f"day_{run.policy}"
    return [
        CaseResult(case=f"{title}_ttft_p99", value=run.ttft_p99_s, unit="s", limit=TTFT_TARGET_S),
        CaseResult(case=f"{title}_tpot_p99", value=run.tpot_p99_s, unit="s", limit=TPOT_TARGET_S),
        CaseResult(case=f"{title}_hit_rate", value=run.hit_rate, unit="of prompt tokens"),
        CaseResult(case=f"{title}_changes", value=float(run.num_changes), unit="a day"),
        CaseResult(case=f"{title}_flaps", value=float(run.num_flaps), unit="a day"),
    ]


def _capacity_cases(capacity: Capacity) -> list[CaseResult]:
    return [
        CaseResult(case="day_static_peak_nodes", value=capacity.num_replicas, unit="nodes"),
        CaseResult(case="day_replica_rps", value=capacity.replica_rps, unit="requests/s"),
    ]
