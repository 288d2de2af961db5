"""KEDA with Kubernetes' horizontal autoscaler (``autoscaling/v2`` defaults): what is in flight or
queued over a threshold per replica, asked every 15 s; within 10 % nothing changes; up at most to
the double or by four each 15 s, down to the most that was wanted in the last 300 s.
"""

import math
from collections import deque

from simulator.scaling.view import ScalingSetting, ScalingView, Wanted

_SYNC_S, _STABILISATION_S, _TOLERANCE = 15.0, 300.0, 0.1
_UTILISATION = 0.8
"""The threshold, as a share of what a replica holds at full load."""


class Keda:
    """A ``ScalingPolicy``."""

    def __init__(self, setting: ScalingSetting) -> None:
        self._tick_s = setting.tick_s
        self._threshold = _UTILISATION * setting.replica_concurrency
        self._since_sync_s = math.inf
        syncs = _STABILISATION_S / max(_SYNC_S, setting.tick_s)
        self._wanted: deque[int] = deque(maxlen=max(1, round(syncs)))

    def size(self, view: ScalingView) -> Wanted:
        current = max(1, view.ready + view.pending)
        self._since_sync_s += self._tick_s
        if self._since_sync_s < _SYNC_S:
            return Wanted(current)
        self._since_sync_s = 0.0
        wanted = max(1, math.ceil(view.num_ongoing / self._threshold))
        if abs(view.num_ongoing / (current * self._threshold) - 1) <= _TOLERANCE:
            wanted = current
        self._wanted.append(wanted)
        if wanted > current:
            return Wanted(min(wanted, max(2 * current, current + 4)))
        return Wanted(min(current, max(self._wanted)))
