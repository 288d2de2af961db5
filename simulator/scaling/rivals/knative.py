"""Knative's pod autoscaler (``knative.dev/serving``, ``pkg/autoscaler/scaling/autoscaler.go``),
with its defaults: a stable window of 60 s at 70 % utilisation; where a window of 6 s asks for twice
the ready replicas, it panics for 60 s, takes that window and never goes down.
"""

import math
from collections import deque

from simulator.scaling.view import ScalingSetting, ScalingView, Wanted

_STABLE_S, _PANIC_S, _PANIC_THRESHOLD, _UTILISATION = 60.0, 6.0, 2.0, 0.7


class Knative:
    """A ``ScalingPolicy``."""

    def __init__(self, setting: ScalingSetting, *, by_concurrency: bool = False) -> None:
        """``by_concurrency``: its metric is what is ongoing, in place of arrivals."""
        self._setting = setting
        self._by_concurrency = by_concurrency
        self._stable: deque[float] = deque(maxlen=max(1, round(_STABLE_S / setting.tick_s)))
        self._panic: deque[float] = deque(maxlen=max(1, round(_PANIC_S / setting.tick_s)))
        self._panic_until_s = -math.inf
        self._panic_most = 0

    def size(self, view: ScalingView) -> Wanted:
        load = self._load(view)
        self._stable.append(load)
        self._panic.append(load)
        stable = math.ceil(sum(self._stable) / len(self._stable) / _UTILISATION)
        panic = math.ceil(sum(self._panic) / len(self._panic) / _UTILISATION)
        if panic >= _PANIC_THRESHOLD * max(1, view.ready):
            self._panic_until_s = view.now_s + _STABLE_S
        if view.now_s < self._panic_until_s:
            self._panic_most = max(self._panic_most, panic, view.ready + view.pending)
            return Wanted(self._panic_most)
        self._panic_most = 0
        return Wanted(max(1, stable))

    def _load(self, view: ScalingView) -> float:
        """In replicas."""
        if self._by_concurrency:
            return view.num_ongoing / self._setting.replica_concurrency
        return view.num_arrived / self._setting.tick_s / self._setting.replica_rps
