"""Draws scaling policies side by side: cost against lateness, and sizes beside the load of a day.

Matplotlib is the extra ``plots``, and is imported only when something is drawn.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from simulator.scaling.comparison import ClairvoyantRun, Comparison, ScalingRun
from simulator.scaling.rate_replay import SizeSeries
from simulator.scaling.rate_trace import DAY_S, Counts, Vector
from simulator.scaling.view import ScalingSetting

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INCHES = (13.0, 9.0)
_NUM_POINTS = 720
"""Of a line: each is the most of its part of the time."""
_LEAST_LATE = 1e-6
"""No request late has no place on a logarithmic axis."""
_DEAREST = 3.0
"""Costs beyond are drawn at the edge."""


def draw_comparison(
    comparison: Comparison,
    series: Mapping[str, SizeSeries],
    scored: Counts,
    setting: ScalingSetting,
) -> "Figure":
    """``series``: by policy, at the lead of ``setting``; ``scored``: arrivals of the same ticks."""
    # No pyplot: it keeps every figure, and asks for a display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=_INCHES, layout="constrained")
    above, below = figure.subfigures(2, 1, squeeze=False)[:, 0]
    leads = sorted({run.lead_s for run in comparison.runs})
    axes = above.subplots(1, len(leads), squeeze=False)[0]
    for lead_s, each in zip(leads, axes, strict=True):
        runs = [run for run in comparison.runs if run.lead_s == lead_s]
        clairvoyants = [run for run in comparison.clairvoyants if run.lead_s == lead_s]
        _draw_costs(each, lead_s, runs, clairvoyants)
    _draw_sizes(below.subplots(), series, scored, setting)
    return figure


def _draw_costs(
    axes: "Axes", lead_s: float, runs: Sequence[ScalingRun], clairvoyants: Sequence[ClairvoyantRun]
) -> None:
    axes.set_title(f"lead {lead_s:g} s")
    axes.set_xlabel("share of requests that are late")
    axes.set_ylabel("replica-hours over the oracle's")
    axes.set_xscale("log")
    for run in runs:
        late = max(_LEAST_LATE, run.figures.late_fraction)
        cost = min(_DEAREST, run.figures.cost_over_oracle)
        axes.plot(late, cost, "o")
        axes.annotate(run.policy, (late, cost), fontsize="small")
    for clairvoyant in clairvoyants:
        late = max(_LEAST_LATE, clairvoyant.point.late_fraction)
        axes.plot(late, clairvoyant.point.cost, "k*", label="clairvoyant")
        axes.legend(fontsize="small")
    axes.grid(visible=True, alpha=0.3)


def _draw_sizes(
    axes: "Axes", series: Mapping[str, SizeSeries], scored: Counts, setting: ScalingSetting
) -> None:
    """The busiest day, or all of what is shorter."""
    day = min(len(scored), round(DAY_S / setting.tick_s))
    ends = np.cumsum(scored)[day - 1 :: day]
    begin = int(np.argmax(np.diff(ends, prepend=0))) * day
    load = scored[begin : begin + day] / setting.tick_s / setting.replica_rps
    hours = np.arange(len(load)) * setting.tick_s / 3600
    axes.set_title(f"sizes on the busiest day, lead {setting.lead_s:g} s")
    axes.set_xlabel("hours")
    axes.set_ylabel("replicas")
    axes.plot(*_thinned(hours, load), color="0.7", label="load")
    for number, (name, each) in enumerate(series.items()):
        sizes = np.asarray(each.serving[begin : begin + day], dtype=np.float64)
        style = {"color": "black", "linewidth": 2.0} if number == 0 else {"linewidth": 1.0}
        axes.plot(*_thinned(hours, sizes), label=name, **style)
    axes.set_ylim(0, 2.5 * float(load.max()))
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize="small", ncols=4)


def _thinned(
    hours: Vector,
    values: Vector,
) -> tuple[Vector, Vector]:
    width = max(1, len(values) // _NUM_POINTS)
    num = len(values) // width
    return hours[: num * width : width], values[: num * width].reshape(num, width).max(axis=1)
