"""How far off forecasts are: by the load's own jitter, and by the errors of those who forecast.

The two are kept apart, since no forecaster helps against jitter, and both change within minutes. In
units of both together errors look alike at all times: their distribution is counted for days, and
gives quantiles that hold whatever the shape of errors is (split conformal prediction with
forgetting: Vovk et al. 2005; Barber et al. 2023). The unit has an additive floor: near a load of
zero there is nothing to multiply. Arrays are [num_horizons, num_forecasters].
"""

import math
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

JITTER_STEPS = 30
ERROR_STEPS = 30
"""Or two horizons, if that is longer."""
PRIOR_ERROR = 0.2
"""In magnitudes, until errors are seen."""
PRIOR_STEPS = 6.0
MAGNITUDE_POWER = 0.75
"""Errors grow with the load: between Poisson's root and in proportion."""
FLOOR = 0.02
"""Replicas: no forecast is better than this, however quiet it was."""
MOST_JUMP = 8.0
"""Times what is usual: one wild step must not be all that is remembered."""
RATIO_MEMORY_S = 2 * 86_400.0
NORMAL_STEPS = 360.0
"""What the prior counts for: errors are normal until they are seen to be otherwise."""
MOST_NORMAL = 2.0
"""Times the normal's: further out there is too little to count."""
APART_STEPS = 6
"""Errors overlap at longer horizons: those of one horizon count about once."""
EDGES = np.sinh(np.linspace(-3.0, 3.5, 131))
"""Of errors in units: -10 to 16.5, finest about 0."""
_MEAN_TO_DEVIATION = math.sqrt(math.pi / 2)
_JITTER_TO_STEP = 1 / math.sqrt(1.5)
"""A step less the mean of its neighbours varies half as much again as a step does."""


class Jitter:
    """How much steps differ from their neighbours, of late: a standard deviation."""

    def __init__(self) -> None:
        self._gain = -math.expm1(-1 / JITTER_STEPS)
        self._num_seen = 0
        self._square = 0.0  # in magnitudes
        self._before: tuple[float, ...] = ()

    def observe(self, load: float) -> None:
        """One step."""
        before = self._before
        if len(before) == 2:
            middle = (before[0] + load) / 2
            off = _JITTER_TO_STEP * (before[1] - middle) / magnitude(middle)
            self._num_seen += 1
            gain = max(self._gain, 1 / (self._num_seen + PRIOR_STEPS))
            most = MOST_JUMP * MOST_JUMP * (self._square or math.inf)
            self._square += gain * (min(off * off, most) - self._square)
        self._before = (*before[-1:], load)

    def forget_recent(self) -> None:
        """The next step has no neighbours."""
        self._before = ()

    def deviation(self, load: float) -> float:
        """Of a step at that level, in replicas."""
        return math.sqrt(self._square) * magnitude(load)


class Errors:
    """How far off each forecaster was of late, at each horizon: a standard deviation."""

    def __init__(self, ahead: NDArray[np.int64], num_forecasters: int) -> None:
        """``ahead``: the horizons, in steps."""
        self._gains = -np.expm1(-1 / np.maximum(ERROR_STEPS, 2 * ahead))[:, None]
        self._num_scored = np.zeros((len(ahead), 1))
        self._means = np.full((len(ahead), num_forecasters), PRIOR_ERROR)

    def score(self, rows: NDArray[np.intp], errors: Array, level: float) -> None:
        """``errors``: of what was said of now, in replicas, where the load is about ``level``."""
        sizes = np.abs(errors) / magnitude(level)
        means = self._means[rows]
        self._num_scored[rows] += 1
        # At first the mean of what was seen, later that of the last while.
        gains = np.maximum(self._gains[rows], 1 / (self._num_scored[rows] + PRIOR_STEPS))
        self._means[rows] = means + gains * (np.minimum(sizes, MOST_JUMP * means + FLOOR) - means)

    def deviations(self, load: float) -> Array:
        """At that level, in replicas."""
        deviations: Array = _MEAN_TO_DEVIATION * magnitude(load) * self._means
        return deviations


class Ratios:
    """The distribution of errors over what they were expected to be, per horizon."""

    def __init__(self, step_s: float, ahead: NDArray[np.int64]) -> None:
        """``ahead``: the horizons, in steps."""
        self._kept = math.exp(-step_s / RATIO_MEMORY_S)
        self._gains = APART_STEPS / np.maximum(ahead, APART_STEPS)
        cumulative = np.array([NormalDist().cdf(edge) for edge in EDGES])
        self._counts = np.broadcast_to(
            NORMAL_STEPS * np.diff(cumulative), (len(ahead), len(EDGES) - 1)
        ).copy()

    def score(self, rows: NDArray[np.intp], ratios: Array) -> None:
        """Of what was said of now."""
        bins = np.clip(np.searchsorted(EDGES, ratios) - 1, 0, len(EDGES) - 2)
        self._counts *= self._kept
        self._counts[rows, bins] += self._gains[rows]

    def quantile(self, row: int, level: float) -> float:
        """Not exceeded with that probability."""
        cumulative = np.append(0.0, np.cumsum(self._counts[row]))
        seen = float(np.interp(level * cumulative[-1], cumulative, EDGES))
        most = MOST_NORMAL * abs(NormalDist().inv_cdf(level))
        return min(max(seen, -most), most)


def magnitude(load: float) -> float:
    """What errors at that level are measured by."""
    return math.pow(0.1 + max(0.0, load), MAGNITUDE_POWER)
