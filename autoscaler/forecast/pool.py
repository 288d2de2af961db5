"""Weighs experts by how their forecasts held. Knows no clock and no replicas.

A hedge with a fixed share (Herbster and Warmuth 1998), so that it changes its mind when the load
does, on the pinball loss of the median and of the quantile in use. Arrays are [num_horizons,
num_experts].
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LOSS_STEPS = 180
SHARE_STEPS = 8640
"""After so long without a good word an expert is as good as any other one again."""
RATE = 0.2
"""Slow: each switch between experts is a jump of the forecast, which costs more than it brings."""
RATE_STEPS = 6
"""Errors overlap at longer horizons: those of one horizon count about once."""
MOST_LOSS = 10.0
"""Times what is typical: one wild step must not decide for ever."""


class ExpertPool:
    """Weights of all experts, per horizon."""

    def __init__(self, ahead: NDArray[np.int64], num_experts: int) -> None:
        """``ahead``: the horizons, in steps."""
        self._rates = (RATE / np.maximum(ahead, RATE_STEPS))[:, None]
        self._gain = -math.expm1(-1 / LOSS_STEPS)
        self._typical = np.zeros((len(ahead), 1))
        self.weights = np.full((len(ahead), num_experts), 1.0 / num_experts)

    def score(self, rows: NDArray[np.intp], errors: Array, margins: Array, level: float) -> None:
        """``errors``: load less forecast, at these horizons. ``margins``: what each expert's
        forecast of the quantile ``level`` lay above that."""
        over = errors - margins
        losses = np.abs(errors) / 2 + np.maximum(level * over, (level - 1) * over)
        weights = self.weights[rows]
        mean = np.maximum((losses * weights).sum(1, keepdims=True), 1e-12)
        typical = self._typical[rows]
        typical = np.where(typical == 0, mean, typical + self._gain * (mean - typical))
        self._typical[rows] = typical
        weights = weights * np.exp(-self._rates[rows] * np.minimum(losses / typical, MOST_LOSS))
        weights /= weights.sum(1, keepdims=True)
        self.weights[rows] = (1 - 1 / SHARE_STEPS) * weights + 1 / (SHARE_STEPS * weights.shape[1])
