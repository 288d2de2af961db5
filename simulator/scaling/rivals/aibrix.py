"""AIBrix's pod autoscaler APA (``vllm-project/aibrix``, ``pkg/controller/podautoscaler``): the
ratio of a metric per ready replica to its target multiplies the size, outside of a tolerance and at
most twofold. It multiplies the size that it asked for, also while that is still starting.
"""

import math
from collections import deque

from simulator.scaling.view import ScalingSetting, ScalingView, Wanted

_WINDOW_S, _UP_TOLERANCE, _DOWN_TOLERANCE, _MOST_UP, _MOST_DOWN = 60.0, 0.1, 0.2, 2.0, 2.0
_UTILISATION = 0.8
"""Its target, as a share of what a replica holds at full load."""


class AibrixApa:
    """A ``ScalingPolicy``."""

    def __init__(self, setting: ScalingSetting) -> None:
        self._target = _UTILISATION * setting.replica_concurrency
        self._metrics: deque[float] = deque(maxlen=max(1, round(_WINDOW_S / setting.tick_s)))

    def size(self, view: ScalingView) -> Wanted:
        self._metrics.append(view.num_ongoing / max(1, view.ready))
        current = max(1, view.ready + view.pending)
        ratio = sum(self._metrics) / len(self._metrics) / self._target
        if ratio > 1 + _UP_TOLERANCE:
            return Wanted(min(math.ceil(current * ratio), math.ceil(current * _MOST_UP)))
        if ratio < 1 - _DOWN_TOLERANCE:
            return Wanted(max(1, math.floor(current * ratio), math.ceil(current / _MOST_DOWN)))
        return Wanted(current)
