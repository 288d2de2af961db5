"""The busiest minute of the last hour."""

import math
from collections import deque

from simulator.scaling.view import ScalingSetting, ScalingView, Wanted


class MaxHour:
    """A ``ScalingPolicy``."""

    def __init__(self, setting: ScalingSetting) -> None:
        self._setting = setting
        self._minute: deque[float] = deque(maxlen=max(1, round(60 / setting.tick_s)))
        self._hour: deque[tuple[int, float]] = deque()
        """Tick and rate of minutes that no later one exceeds."""
        self._num_ticks = 0

    def size(self, view: ScalingView) -> Wanted:
        self._minute.append(view.num_arrived)
        rate = sum(self._minute) / len(self._minute) / self._setting.tick_s
        while self._hour and self._hour[-1][1] <= rate:
            self._hour.pop()
        self._hour.append((self._num_ticks, rate))
        self._num_ticks += 1
        if self._hour[0][0] <= self._num_ticks - 1 - round(3600 / self._setting.tick_s):
            self._hour.popleft()
        return Wanted(max(1, math.ceil(self._hour[0][1] / self._setting.replica_rps)))
