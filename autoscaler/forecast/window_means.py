"""Means of a load over its last steps, few and many."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

WINDOWS = (3, 6, 12, 18, 30, 60, 120, 360)
"""In steps: with steps of ten seconds from half a minute to an hour."""
LAST = 1
"""Of ``WINDOWS``: what counts as the load now."""


class WindowMeans:
    """Of one load. While a window isn't full, the mean of what there is."""

    def __init__(self) -> None:
        self._loads: deque[float] = deque(maxlen=WINDOWS[-1] + 1)
        self._sums = np.zeros(len(WINDOWS))
        self.now: NDArray[np.float64] = np.full(len(WINDOWS), np.nan)

    def add(self, load: float) -> None:
        """One step."""
        loads = self._loads
        loads.append(load)
        num = len(loads)
        self._sums += load
        for at, length in enumerate(WINDOWS):
            if num > length:
                self._sums[at] -= loads[-1 - length]
        # Rounding must not leave less than nothing behind.
        np.maximum(self._sums, 0.0, out=self._sums)
        self.now = self._sums / np.minimum(num, WINDOWS)

    def clear(self) -> None:
        """The next step is the first one; what ``now`` says holds until then."""
        self._loads.clear()
        self._sums[:] = 0.0
