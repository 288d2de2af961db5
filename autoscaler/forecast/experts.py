"""Simple opinions on the load some time ahead; none knows how good it is, nor of the others."""

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecast.regression import Regression
from autoscaler.forecast.season import Season
from autoscaler.forecast.window_means import LAST, WindowMeans

EXPERTS = (
    "last",
    "mean",
    "trend",
    "ewma",
    "max_hour",
    "season",
    "season_shape",
    "regression",
)
TREND_STEPS = 30
"""A trend is seen over this time, and believed for about as long."""
EWMA_STEPS = 180
HOUR_S = 3600.0

Array = NDArray[np.float64]


class Experts:
    """All experts of one model, for a fixed set of horizons, given in steps."""

    def __init__(self, step_s: float, ahead: NDArray[np.int64]) -> None:
        self._step_s = step_s
        self._from_now_s = np.append(0.0, ahead * step_s)
        self._means = WindowMeans()
        self._regression = Regression(step_s, ahead)
        self._trend: deque[float] = deque(maxlen=TREND_STEPS)
        # How far a damped line of slope 1 gets.
        self._reach = TREND_STEPS * -np.expm1(-ahead / TREND_STEPS)
        self._mean = math.nan
        self._gain = -math.expm1(-1 / EWMA_STEPS)
        self._hour: deque[tuple[int, float]] = deque()  # falling maxima of minute means
        self._num_seen = 0
        self._season = Season()

    @property
    def last(self) -> float:
        """The load now, a mean of some steps; NaN before the first one."""
        return float(self._means.now[LAST])

    def observe(self, load: float, local_s: float) -> None:
        """One step of known load."""
        self._num_seen += 1
        self._means.add(load)
        self._regression.observe(load, self._means.now)
        self._trend.append(load)
        self._mean = (
            load if math.isnan(self._mean) else self._mean + self._gain * (load - self._mean)
        )
        hour, last = self._hour, self.last
        while hour and hour[-1][1] <= last:
            hour.pop()
        hour.append((self._num_seen, last))
        while hour[0][0] <= self._num_seen - HOUR_S / self._step_s:
            hour.popleft()
        self._season.observe(local_s, load)

    def forget_recent(self) -> None:
        """After a gap: the minutes before it are no neighbours of those after it."""
        self._means.clear()
        self._regression.forget_recent()
        self._trend.clear()

    def predict(self, local_s: float) -> Array:
        """[num_horizons, num_experts], none below 0."""
        last = self.last
        out = np.empty((len(self._reach), len(EXPERTS)))
        out[:, 0] = last
        out[:, 1] = self._means.now[LAST + 1]
        out[:, 2] = self._line() if len(self._trend) > 1 else last
        out[:, 3] = self._mean
        out[:, 4] = self._hour[0][1]
        usual = self._season.at(local_s + self._from_now_s)
        here, there = usual[0], usual[1:]
        out[:, 5] = np.where(np.isnan(there), last, there)
        shift = there - here
        out[:, 6] = np.where(np.isnan(shift), last, last + shift)
        out[:, 7] = self._regression.predict(self._means.now)
        return np.maximum(out, 0.0, out=out)

    def _line(self) -> Array:
        """The straight line through the last minutes, ever flatter from its end on."""
        loads = np.fromiter(self._trend, float)
        num = len(loads)
        at = np.arange(num) - (num - 1) / 2
        slope = float(at @ loads) / (num * (num * num - 1) / 12)  # per step
        # A short history is mostly noise: trust it as far as it is long.
        slope *= num / (self._trend.maxlen or num)
        end = float(loads.mean()) + slope * (num - 1) / 2
        line: Array = end + slope * self._reach
        return line
