"""NVIDIA Dynamo's planner (``ai-dynamo/dynamo``, ``components/src/dynamo/planner/core``): each
180 s the load of the next interval is predicted, as a point, and the replicas for it are a floor;
each 5 s the load loop adds one if all engines miss their targets, and takes one if one fewer would
keep within 0.8 of them. Nothing changes while a replica is on its way. How long a start takes is
not in it, nor what waits.
"""

import math
from typing import Literal

from simulator.scaling.view import ScalingSetting, ScalingView, Wanted

_INTERVAL_S, _LOAD_LOOP_S, _SENSITIVITY = 180.0, 5.0, 0.8
_LEVEL_NOISE, _TREND_NOISE, _MEASURED_NOISE = 1.0, 0.1, 10.0


class Kalman:
    """Level and trend of a series of rates, with the planner's default noises."""

    def __init__(self) -> None:
        self._level = self._trend = 0.0
        self._p = [100.0, 0.0, 100.0]
        """Covariance: level, level with trend, trend."""
        self._is_empty = True

    def observe(self, value: float) -> None:
        if self._is_empty:
            self._level, self._is_empty = value, False
            return
        level, (p00, p01, p11) = self._level + self._trend, self._p
        p00, p01, p11 = p00 + 2 * p01 + p11 + _LEVEL_NOISE, p01 + p11, p11 + _TREND_NOISE
        gain_level, gain_trend = p00 / (p00 + _MEASURED_NOISE), p01 / (p00 + _MEASURED_NOISE)
        error = value - level
        self._level, self._trend = level + gain_level * error, self._trend + gain_trend * error
        self._p = [(1 - gain_level) * p00, (1 - gain_level) * p01, p11 - gain_trend * p01]

    def next(self) -> float:
        return max(0.0, self._level + self._trend)


class DynamoPlanner:
    """A ``ScalingPolicy``."""

    def __init__(
        self, setting: ScalingSetting, predictor: Literal["constant", "kalman"] = "constant"
    ) -> None:
        self._setting = setting
        self._kalman = Kalman() if predictor == "kalman" else None
        self._num_arrived = self._elapsed_s = self._since_loop_s = 0.0
        self._floor = 1
        self._is_due = False

    def size(self, view: ScalingView) -> Wanted:
        self._observe(view)
        current = view.ready + view.pending
        if view.pending or view.ready == 0:
            return Wanted(current)
        if self._is_due or current < self._floor:
            self._is_due = False
            return Wanted(max(self._floor, self._load_loop(view)))
        if self._since_loop_s < _LOAD_LOOP_S:
            return Wanted(current)
        self._since_loop_s = 0.0
        return Wanted(max(self._floor, self._load_loop(view)))

    def _observe(self, view: ScalingView) -> None:
        tick_s = self._setting.tick_s
        self._num_arrived += view.num_arrived
        self._elapsed_s += tick_s
        self._since_loop_s += tick_s
        if self._elapsed_s < _INTERVAL_S:
            return
        rate = self._num_arrived / self._elapsed_s
        if self._kalman is not None:
            self._kalman.observe(rate)
            rate = self._kalman.next()
        self._floor = max(1, math.ceil(rate / self._setting.replica_rps))
        self._num_arrived = self._elapsed_s = 0.0
        self._is_due = True

    def _load_loop(self, view: ScalingView) -> int:
        """A latency target is missed where more is ongoing than a replica holds at full load."""
        load = view.num_ongoing / self._setting.replica_concurrency
        if load > view.ready:
            return view.ready + 1
        if view.ready > 1 and load <= _SENSITIVITY * (view.ready - 1):
            return view.ready - 1
        return view.ready
