"""Learns, per horizon, how the load ahead follows from means of the load so far.

Recursive least squares with exponential forgetting (Haykin, Adaptive Filter Theory, ch. 10), on
means in units of the load now, so that what was learned at one level holds at another. It
finds by itself whether trends last, levels return, or the load now says it all.
"""

import math

import numpy as np
from numpy.typing import NDArray

from autoscaler.forecast.window_means import LAST, WINDOWS

Array = NDArray[np.float64]

MEMORY_S = 86_400.0
PRIOR = 0.1
"""Variance of a weight around the last value's before anything was learned."""
MOST_VARIANCE = 1.0
"""Forgetting must not make weights free that nothing was learned about for days."""
LEAST_UNIT = 0.2
"""Replicas: near nothing, means have no ratio."""
MOST_RATIO = 4.0
MOST_ERROR = 1.0
"""Units; a larger one is a jump, of which there is little to learn."""


class Regression:
    """Weights of the means of ``window_means``, for a fixed set of horizons, given in steps."""

    def __init__(self, step_s: float, ahead: NDArray[np.int64]) -> None:
        num = len(WINDOWS)
        self._ahead = ahead
        self._kept = math.exp(-step_s / MEMORY_S)
        self._weights = np.zeros((len(ahead), num))
        self._weights[:, LAST] = 1.0
        self._variance = np.broadcast_to(PRIOR * np.eye(num), (len(ahead), num, num)).copy()
        self._size = int(ahead[-1]) + 1
        self._past = np.full((self._size, num), np.nan)
        self._past_units = np.full(self._size, np.nan)
        self._slot = 0

    def observe(self, load: float, means: Array) -> None:
        """One step of known load, and the means of which it is the newest part."""
        self._slot += 1
        then = (self._slot - self._ahead) % self._size
        units = self._past_units[then]
        rows = np.flatnonzero(~np.isnan(units))
        if len(rows):
            self._learn(rows, self._past[then[rows]], load / units[rows])
        at = self._slot % self._size
        self._past_units[at] = self._unit(means)
        self._past[at] = self._scaled(means)

    def predict(self, means: Array) -> Array:
        """[num_horizons]: the load, never more than ``MOST_RATIO`` times that of now and never
        less than nothing.
        """
        said = self._weights @ self._scaled(means)
        clipped: Array = np.clip(said, 0.0, MOST_RATIO) * self._unit(means)
        return clipped

    def forget_recent(self) -> None:
        """After a gap: what was seen before it says nothing of what comes after it."""
        self._past_units[:] = np.nan

    def _learn(self, rows: NDArray[np.intp], means: Array, loads: Array) -> None:
        variance = self._variance[rows]
        seen = np.einsum("hij,hj->hi", variance, means)
        size = self._kept + np.einsum("hi,hi->h", means, seen)
        gain = seen / size[:, None]
        errors = loads - np.einsum("hi,hi->h", self._weights[rows], means)
        self._weights[rows] += gain * np.clip(errors, -MOST_ERROR, MOST_ERROR)[:, None]
        variance = (variance - gain[:, :, None] * seen[:, None, :]) / self._kept
        most = np.einsum("hii->hi", variance).max(1)
        variance *= np.minimum(1.0, MOST_VARIANCE / most)[:, None, None]
        self._variance[rows] = variance

    def _unit(self, means: Array) -> float:
        return max(LEAST_UNIT, float(means[LAST]))

    def _scaled(self, means: Array) -> Array:
        scaled: Array = np.minimum(means / self._unit(means), MOST_RATIO)
        return scaled
