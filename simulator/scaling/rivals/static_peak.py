"""Enough for the busiest ten minutes of the first day, for ever."""

import math
from collections import deque

from simulator.scaling.view import ScalingSetting, ScalingView, Wanted

_WINDOW_S, _DAY_S = 600.0, 86_400.0


class StaticPeak:
    """A ``ScalingPolicy``."""

    def __init__(self, setting: ScalingSetting) -> None:
        self._setting = setting
        self._recent: deque[float] = deque(maxlen=max(1, round(_WINDOW_S / setting.tick_s)))
        self._sum = 0.0
        self._peak = 1

    def size(self, view: ScalingView) -> Wanted:
        if view.now_s <= _DAY_S:
            if len(self._recent) == self._recent.maxlen:
                self._sum -= self._recent[0]
            self._recent.append(view.num_arrived)
            self._sum += view.num_arrived
            rate = self._sum / len(self._recent) / self._setting.tick_s
            self._peak = max(self._peak, math.ceil(rate / self._setting.replica_rps))
        return Wanted(self._peak)
