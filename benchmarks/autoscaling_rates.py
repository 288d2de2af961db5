"""Scaling policies on days of request rates: ours beside published ones, at several leads, beside
who knows the future; and what the warm ladder adds.
"""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.result import CaseResult
from simulator.scaling.comparison import (
    OURS,
    ClairvoyantRun,
    Comparison,
    ScalingRun,
    cells,
    compare,
    static_peak,
)
from simulator.scaling.rate_trace import Counts
from simulator.scaling.registry import POLICIES
from simulator.scaling.view import ScalingSetting

REPLICA_RPS = 4.0
LEADS_S = (10.0, 30.0, 60.0, 120.0, 300.0)
FRONTIER_LEADS_S = (30.0, 120.0, 300.0)
RUNG_LEADS_S = (120.0, 300.0)
WAKE_S, PARKED_COST = 3.0, 0.25
_PEER = "last_value"
_CHANGES_PER_DAY, _FLAPS_PER_DAY = 150.0, 5.0
_COST_RATIOS = {30.0: 0.97, 120.0: 0.97, 300.0: 1.03}
"""Of ours to last value's, at most."""
_LATE_RATIOS = {30.0: 1.0, 120.0: 1.0, 300.0: 0.6}


def measure_rates(
    counts: Counts, tick_s: float = 10.0, leads_s: Sequence[float] = LEADS_S, *, is_short: bool
) -> list[CaseResult]:
    """``is_short``: without who knows the future, who takes a minute per lead."""
    setting = ScalingSetting(REPLICA_RPS, 0.0, tick_s=tick_s)
    setting = replace(setting, max_replicas=2 * static_peak(counts, setting))
    results: list[CaseResult] = []
    for lead_s in leads_s:
        at_lead = replace(setting, lead_s=lead_s)
        comparison = compare(
            counts,
            [at_lead],
            list(POLICIES),
            with_frontier=lead_s in FRONTIER_LEADS_S and not is_short,
            tell=_tell,
        )
        results += _cases(f"{lead_s:g}s", comparison)
        if lead_s in RUNG_LEADS_S and not is_short:
            warm = replace(at_lead, wake_s=WAKE_S, parked_cost=PARKED_COST)
            rungs = compare(counts, [warm], [OURS], with_frontier=False, tell=_tell)
            results += _policy_cases(f"{lead_s:g}s_{OURS}_with_rungs", rungs.runs[0], None)
    return results


def _tell(run: ScalingRun | ClairvoyantRun) -> None:
    print("  ".join(f"{name} {cell}" for name, cell in cells(run).items()), flush=True)


def _cases(title: str, comparison: Comparison) -> list[CaseResult]:
    peer = next(run for run in comparison.runs if run.policy == _PEER)
    results: list[CaseResult] = []
    for run in comparison.runs:
        compared = peer if run.policy == OURS else None
        results += _policy_cases(f"{title}_{run.policy}", run, compared)
    for clairvoyant in comparison.clairvoyants:
        point = clairvoyant.point
        results += [
            CaseResult(case=f"{title}_clairvoyant_late", value=point.late_fraction, unit="share"),
            CaseResult(case=f"{title}_clairvoyant_cost", value=point.cost, unit="of the oracle"),
            CaseResult(case=f"{title}_clairvoyant_bound", value=point.bound, unit="of the oracle"),
        ]
    return results


def _policy_cases(title: str, run: ScalingRun, peer: ScalingRun | None) -> list[CaseResult]:
    """``peer``: whose figures are what ours shall stay below."""
    figures = run.figures
    late_limit = cost_limit = changes_limit = flaps_limit = None
    if peer is not None and run.lead_s in _COST_RATIOS:
        late_limit = _LATE_RATIOS[run.lead_s] * peer.figures.late_fraction or None
        cost_limit = _COST_RATIOS[run.lead_s] * peer.figures.cost_over_oracle
        changes_limit, flaps_limit = _CHANGES_PER_DAY, _FLAPS_PER_DAY
    return [
        _case(f"{title}_late", figures.late_fraction, "share", late_limit, peer, "late_fraction"),
        _case(
            f"{title}_cost",
            figures.cost_over_oracle,
            "of the oracle",
            cost_limit,
            peer,
            "cost_over_oracle",
        ),
        _case(f"{title}_changes", figures.changes_per_day, "a day", changes_limit),
        _case(f"{title}_flaps", figures.flaps_per_day, "a day", flaps_limit),
        _case(f"{title}_replica_hours", figures.replica_hours, "hours"),
    ]


def _case(
    name: str,
    value: float,
    unit: str,
    limit: float | None = None,
    peer: ScalingRun | None = None,
    peer_figure: str = "",
) -> CaseResult:
    return CaseResult(
        case=name,
        value=value,
        unit=unit,
        limit=limit,
        peer=None if peer is None else peer.policy,
        peer_value=None if peer is None else getattr(peer.figures, peer_figure),
    )
