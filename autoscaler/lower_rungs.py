"""How many nodes one model wants: with its weights in memory, on disk, and at all. Pure.

Newsvendor, as for replicas (``autoscaler.ladder``): the cheaper a rung, the surer it is to have
enough. Cheap rungs follow every forecast up at once, and come down only to the most that was right
within twice a lead: a node that drops its weights only to fetch them again gains nothing.
Nodes cost as much as replicas and come later: they are sized like these, further ahead.
"""

import math
from collections import deque
from dataclasses import dataclass

from autoscaler.config import ModelScalingConfig
from autoscaler.forecast.forecaster import DemandForecaster
from autoscaler.ladder import critical_ratio
from autoscaler.sizing import START_PACE, Sizer

_PERIOD_S = 10.0
"""Forecasts change no faster."""
_HELD_LEADS = 2.0


@dataclass(frozen=True, slots=True)
class NodePlan:
    """As in ``ModelPlan``."""

    num_staged: int
    num_on_disk: int
    num_nodes: int


class Peak:
    """The most of some time, in amortised constant time."""

    def __init__(self) -> None:
        self._falling: deque[tuple[float, int]] = deque()

    def update(self, now_s: float, value: int, held_s: float) -> int:
        """Of the last ``held_s``, ``value`` among them."""
        falling = self._falling
        while falling and falling[-1][1] <= value:
            falling.pop()
        falling.append((now_s, value))
        while falling[0][0] < now_s - held_s:
            falling.popleft()
        return falling[0][1]


class LowerRungs:
    """Owner of what was wanted lately. Counts are replicas' worth, those of replicas included."""

    def __init__(self, forecaster: DemandForecaster) -> None:
        """``forecaster``: at the level of replicas that start."""
        self.num_staged = 0
        self.num_with_weights = 0
        """In memory or on disk."""
        self.num_nodes = 0
        self._forecaster = forecaster
        self._staged, self._with_weights = Peak(), Peak()
        self._nodes = Sizer(forecaster, START_PACE)
        self._updated_s = -math.inf

    def update(
        self, now_s: float, config: ModelScalingConfig, *, cold_lead_s: float, node_lead_s: float
    ) -> None:
        """What is unknown changes nothing."""
        forecaster = self._forecaster
        if now_s - self._updated_s < _PERIOD_S or forecaster.is_blind:
            return
        self._updated_s = now_s
        horizon_s = max(cold_lead_s, START_PACE.least_steps * forecaster.step_s)
        staged, on_disk = (
            math.ceil(forecaster.at(horizon_s, critical_ratio(config.late_cost, cost)).value)
            for cost in (config.staged_cost, config.on_disk_cost)
        )
        held_s = _HELD_LEADS * cold_lead_s
        self.num_staged = self._staged.update(now_s, staged, held_s)
        self.num_with_weights = self._with_weights.update(now_s, max(staged, on_disk), held_s)
        self.num_nodes = self._nodes.size(
            now_s,
            lead_s=node_lead_s + cold_lead_s,
            current=self.num_nodes,
            ready=self.num_nodes,
            backlog=0.0,
        ).num_replicas
