"""Scaling policies side by side, at several leads: replays, and their rows as text. Must not know
files.
"""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from simulator.scaling.frontier import Frontier, FrontierPoint
from simulator.scaling.rate_replay import ReplayFigures, SizeSeries, replay, warm_up_ticks
from simulator.scaling.rate_trace import Counts
from simulator.scaling.registry import create_scaling_policy
from simulator.scaling.view import ScalingSetting

OURS = "headwater"
_CHANGES_PER_DAY = 150.0
"""That the clairvoyant is granted."""
_PEAK_S = 600.0


class ScalingRun(msgspec.Struct, frozen=True):
    """One policy at one lead."""

    policy: str
    lead_s: float
    figures: ReplayFigures


class ClairvoyantRun(msgspec.Struct, frozen=True):
    """Who knows the future, with as few late requests as ``beside`` and at most so many changes."""

    beside: str
    lead_s: float
    point: FrontierPoint


class Comparison(msgspec.Struct, frozen=True):
    """All of it."""

    runs: Sequence[ScalingRun]
    clairvoyants: Sequence[ClairvoyantRun]


def static_peak(counts: Counts, setting: ScalingSetting) -> int:
    """Replicas for the busiest ten minutes of all."""
    width = min(len(counts), max(1, round(_PEAK_S / setting.tick_s)))
    sums = np.convolve(counts, np.ones(width), mode="valid")
    return max(1, int(np.ceil(sums.max() / width / setting.tick_s / setting.replica_rps)))


def compare(
    counts: Counts,
    settings: Sequence[ScalingSetting],
    policies: Sequence[str],
    *,
    with_frontier: bool,
    tell: Callable[[ScalingRun | ClairvoyantRun], None],
    keep: Callable[[ScalingRun, SizeSeries], None] = lambda *_: None,
) -> Comparison:
    """``settings``: one per lead. Each result is told as soon as it is there. Raises
    ``SimulationError``."""
    runs: list[ScalingRun] = []
    clairvoyants: list[ClairvoyantRun] = []
    for setting in settings:
        frontier: Frontier | None = None
        for name in policies:
            figures, series = replay(counts, create_scaling_policy(name, setting), setting)
            run = ScalingRun(name, setting.lead_s, figures)
            runs.append(run)
            keep(run, series)
            tell(run)
            if with_frontier and name == policies[0]:
                scored = counts[warm_up_ticks(len(counts), setting.tick_s) :]
                frontier = frontier or Frontier(scored, setting)
                point = frontier.point(figures.late_fraction, _CHANGES_PER_DAY)
                clairvoyant = ClairvoyantRun(name, setting.lead_s, point)
                clairvoyants.append(clairvoyant)
                tell(clairvoyant)
    return Comparison(runs, clairvoyants)


def cells(run: ScalingRun | ClairvoyantRun) -> dict[str, str]:
    """A row, by the heading of the column."""
    if isinstance(run, ClairvoyantRun):
        point = run.point
        return {
            "policy": f"(clairvoyant, late as {run.beside})",
            "lead": f"{run.lead_s:g} s",
            "late": f"{point.late_fraction:.4f}",
            "cost/oracle": f"{point.cost:.3f}",
            "changes/day": f"{point.changes_per_day:,.0f}",
            "flaps/day": "–",
            "replica hours": "–",
            "asleep": f"bound {point.bound:.3f}",
        }
    figures = run.figures
    return {
        "policy": run.policy,
        "lead": f"{run.lead_s:g} s",
        "late": f"{figures.late_fraction:.4f}",
        "cost/oracle": f"{figures.cost_over_oracle:.3f}",
        "changes/day": f"{figures.changes_per_day:,.0f}",
        "flaps/day": f"{figures.flaps_per_day:,.0f}",
        "replica hours": f"{figures.replica_hours:,.0f}",
        "asleep": f"{figures.mean_parked:.1f}",
    }
