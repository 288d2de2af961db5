"""What the load usually is at this time of the day and of the week. Bounded; knows no clock."""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

SLOT_S = 600.0
DAY_S = 86_400.0
WEEK_S = 7 * DAY_S
DAY_GAIN = 0.3
"""Of a new day against the days before."""
WEEK_GAIN = 0.5


class Season:
    """Means by ten minutes of the day and of the week."""

    def __init__(self) -> None:
        self._day = np.full(int(DAY_S / SLOT_S), np.nan)
        self._week = np.full(int(WEEK_S / SLOT_S), np.nan)
        self._slot: int | None = None  # since 1970: the one that is being filled
        self._sum, self._num = 0.0, 0

    def observe(self, local_s: float, load: float) -> None:
        """One step of known load that ends at ``local_s``."""
        slot = int(local_s // SLOT_S)
        if slot != self._slot:
            self._close()
            self._slot = slot
        self._sum += load
        self._num += 1

    def at(self, local_s: Vector) -> Vector:
        """What is usual at these times; NaN where such a time was never seen."""
        at = local_s / SLOT_S - 0.5
        slot = np.floor(at).astype(np.int64)
        low, high = self._usual(slot), self._usual(slot + 1)
        return low + (at - slot) * (high - low)

    def _usual(self, slot: NDArray[np.int64]) -> Vector:
        day, week = self._day[slot % len(self._day)], self._week[slot % len(self._week)]
        return np.where(np.isnan(week), day, (day + week) / 2)

    def _close(self) -> None:
        if self._slot is not None and self._num:
            mean = self._sum / self._num
            for table, gain in ((self._day, DAY_GAIN), (self._week, WEEK_GAIN)):
                at = self._slot % len(table)
                old = float(table[at])
                table[at] = mean if old != old else old + gain * (mean - old)
        self._sum, self._num = 0.0, 0
