"""The mean of the last minute times a margin, and not less than in the last five minutes: what any
forecaster must beat.
"""

import math
from collections import deque

from simulator.scaling.view import ScalingSetting, ScalingView, Wanted

_WINDOW_S, _HOLD_S = 60.0, 300.0


class LastValue:
    """A ``ScalingPolicy``."""

    def __init__(self, setting: ScalingSetting, margin: float = 1.2) -> None:
        self._setting = setting
        self._margin = margin
        self._recent: deque[float] = deque(maxlen=max(1, round(_WINDOW_S / setting.tick_s)))
        self._wanted: deque[int] = deque(maxlen=max(1, round(_HOLD_S / setting.tick_s)))

    def size(self, view: ScalingView) -> Wanted:
        self._recent.append(view.num_arrived)
        rate = sum(self._recent) / len(self._recent) / self._setting.tick_s
        wanted = math.ceil(rate * self._margin / self._setting.replica_rps)
        self._wanted.append(max(1, wanted))
        return Wanted(max(self._wanted))
