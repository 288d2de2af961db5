"""Replays arrivals on a fleet of numbers, one policy at a time, and sums up what it cost and how
much came too late. Must not know how policies choose.
"""

import math
from collections.abc import Sequence

import msgspec
import numpy as np

from simulator.errors import TraceError
from simulator.scaling.rate_fleet import RateFleet
from simulator.scaling.rate_trace import DAY_S, Counts
from simulator.scaling.view import ScalingPolicy, ScalingSetting


class ReplayFigures(msgspec.Struct, frozen=True):
    """Of one policy; the warm-up is not in them."""

    late_fraction: float
    """Of the requests, that were not served in the tick in which they came."""
    cost_over_oracle: float
    """Replica-hours over those of who always has just enough."""
    changes_per_day: float
    flaps_per_day: float
    """Changes that reverse the one before within twice the lead."""
    replica_hours: float
    """Parked ones at their own cost."""
    mean_serving: float
    """Replicas that serve or are on their way."""
    mean_parked: float


class SizeSeries(msgspec.Struct, frozen=True):
    """What a policy had, tick by tick."""

    serving: Sequence[int]
    late: Sequence[float]


def warm_up_ticks(num_ticks: int, tick_s: float) -> int:
    """A day; of a trace of less than two its first quarter."""
    day = round(DAY_S / tick_s)
    return day if num_ticks >= 2 * day else num_ticks // 4


def oracle_sizes(counts: Counts, setting: ScalingSetting) -> Counts:
    """Just enough for each tick, by who knows it."""
    needed = np.ceil(counts / setting.tick_s / setting.replica_rps)
    return np.maximum(1, needed).astype(np.int64)


def replay(
    counts: Counts, policy: ScalingPolicy, setting: ScalingSetting, num_warm_up: int | None = None
) -> tuple[ReplayFigures, SizeSeries]:
    """``num_warm_up``: ticks that are not scored. Raises ``TraceError`` if none is left."""
    if num_warm_up is None:
        num_warm_up = warm_up_ticks(len(counts), setting.tick_s)
    if not 0 <= num_warm_up < len(counts):
        raise TraceError(
            f"the trace has {len(counts)} ticks of {setting.tick_s:g} s and {num_warm_up} of them "
            "warm policies up: nothing is left to score"
        )
    fleet = RateFleet(setting, int(oracle_sizes(counts[:1], setting)[0]))
    score = _Score(setting, counts, num_warm_up)
    sizes: list[int] = []
    lates: list[float] = []
    for tick, num_arrived in enumerate(counts.tolist()):
        late = fleet.serve(tick, num_arrived)
        sizes.append(fleet.ready + fleet.pending)
        lates.append(late)
        score.count(tick, fleet, late)
        change = fleet.resize(tick, policy.size(fleet.view(tick, num_arrived)))
        if change:
            score.count_change(tick, change)
    return score.figures(), SizeSeries(sizes[num_warm_up:], lates[num_warm_up:])


class _Score:
    """Owner of the sums of one replay."""

    def __init__(self, setting: ScalingSetting, counts: Counts, num_warm_up: int) -> None:
        self._setting = setting
        self._scored = counts[num_warm_up:]
        self._num_warm_up = num_warm_up
        self._flap_ticks = 2 * math.ceil(setting.lead_s / setting.tick_s)
        self._late = self._cost = 0.0
        self._serving = self._parked = self._changes = self._flaps = 0
        self._last = (0, -math.inf)
        """Direction and tick of the last change."""

    def count(self, tick: int, fleet: RateFleet, late: float) -> None:
        if tick < self._num_warm_up:
            return
        self._late += late
        self._cost += fleet.cost
        self._serving += fleet.ready + fleet.pending
        self._parked += fleet.parked

    def count_change(self, tick: int, change: int) -> None:
        direction = 1 if change > 0 else -1
        if tick >= self._num_warm_up:
            self._changes += 1
            is_reversal = direction != self._last[0]
            self._flaps += is_reversal and tick - self._last[1] <= self._flap_ticks
        self._last = (direction, tick)

    def figures(self) -> ReplayFigures:
        scored, tick_s = self._scored, self._setting.tick_s
        days = len(scored) * tick_s / DAY_S
        return ReplayFigures(
            late_fraction=self._late / max(1, int(scored.sum())),
            cost_over_oracle=self._cost / int(oracle_sizes(scored, self._setting).sum()),
            changes_per_day=self._changes / days,
            flaps_per_day=self._flaps / days,
            replica_hours=self._cost * tick_s / 3600,
            mean_serving=self._serving / len(scored),
            mean_parked=self._parked / len(scored),
        )
