"""Ray Serve's default autoscaling (2.60, ``serve/autoscaling_policy.py``): ongoing requests, mean
of 30 s, over a target per replica; a change must have been wanted for 30 s upwards, 600 s
downwards.
"""

import math
from collections import deque

from simulator.scaling.view import ScalingSetting, ScalingView, Wanted

_LOOK_BACK_S, _UPSCALE_DELAY_S, _DOWNSCALE_DELAY_S = 30.0, 30.0, 600.0


class RayDefault:
    """A ``ScalingPolicy`` that is told the true number of running and queued requests."""

    def __init__(self, setting: ScalingSetting, target: float = 1.0) -> None:
        """``target``: ``target_ongoing_requests`` as a share of what a replica holds at full
        load."""
        self._setting = setting
        self._target = target * setting.replica_concurrency
        self._ongoing: deque[float] = deque(maxlen=max(1, round(_LOOK_BACK_S / setting.tick_s)))
        self._above_s = self._below_s = 0.0

    def size(self, view: ScalingView) -> Wanted:
        self._ongoing.append(view.num_ongoing)
        wanted = max(1, math.ceil(sum(self._ongoing) / len(self._ongoing) / self._target))
        current = view.ready + view.pending
        tick_s = self._setting.tick_s
        self._above_s = self._above_s + tick_s if wanted > current else 0.0
        self._below_s = self._below_s + tick_s if wanted < current else 0.0
        if self._above_s >= _UPSCALE_DELAY_S or self._below_s >= _DOWNSCALE_DELAY_S:
            self._above_s = self._below_s = 0.0
            return Wanted(wanted)
        return Wanted(current)
