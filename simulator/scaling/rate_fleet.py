"""A fleet of which only numbers are known: replicas that serve, start, wake and sleep, and requests
that wait. Owner of its counts; must not know policies.

A replica serves ``replica_rps`` requests/s. What is not served in its own tick is late and waits.
Who is given up stops at once; those that start or wake are given up first. Only who serves can be
put to sleep, and who sleeps wakes before another is started.
"""

import math
from collections import deque

from simulator.scaling.view import ScalingSetting, ScalingView, Wanted


class RateFleet:
    """State between two ticks."""

    def __init__(self, setting: ScalingSetting, ready: int) -> None:
        self._setting = setting
        self._lead_ticks = math.ceil(setting.lead_s / setting.tick_s)
        self._wake_ticks = math.ceil(setting.wake_s / setting.tick_s)
        self._starting: deque[int] = deque()
        """Ticks at which one more serves, rising; likewise the next one."""
        self._waking: deque[int] = deque()
        self.ready = ready
        self.parked = 0
        self.num_queued = 0.0

    @property
    def pending(self) -> int:
        return len(self._starting) + len(self._waking)

    @property
    def cost(self) -> float:
        """Of a tick, in replicas that serve."""
        return self.ready + self.pending + self._setting.parked_cost * self.parked

    def serve(self, tick: int, num_arrived: int) -> float:
        """One tick passes; returns how many of those that came in it are late."""
        for moving in (self._starting, self._waking):
            while moving and moving[0] <= tick:
                moving.popleft()
                self.ready += 1
        capacity = self.ready * self._setting.replica_rps * self._setting.tick_s
        waiting = self.num_queued + num_arrived
        self.num_queued = max(0.0, waiting - capacity)
        return min(float(num_arrived), self.num_queued)

    def view(self, tick: int, num_arrived: int) -> ScalingView:
        """After ``serve``. A request takes a second here, so that what is ongoing is what came and
        waits in a second."""
        tick_s = self._setting.tick_s
        concurrency = self._setting.replica_concurrency / self._setting.replica_rps
        ongoing = (num_arrived + self.num_queued) / tick_s * concurrency
        return ScalingView(
            tick * tick_s, num_arrived, self.num_queued, ongoing, self.ready, self.pending,
            self.parked,
        )  # fmt: skip

    def resize(self, tick: int, wanted: Wanted) -> int:
        """Act on what was asked for; returns by how much those that serve or will grew."""
        most = self._setting.max_replicas
        num_serving = min(max(1, wanted.num_serving), most)
        num_parked = min(max(0, wanted.num_parked), most - num_serving)
        change = num_serving - self.ready - self.pending
        for _ in range(change):
            self._grow(tick)
        for _ in range(-change):
            self._shrink(may_sleep=self.parked < num_parked)
        self.parked = min(self.parked, num_parked)
        return change

    def _grow(self, tick: int) -> None:
        if self.parked:
            self.parked -= 1
            self._waking.append(tick + self._wake_ticks)
        else:
            self._starting.append(tick + self._lead_ticks)

    def _shrink(self, *, may_sleep: bool) -> None:
        if self._starting:
            self._starting.pop()
        elif self._waking:
            self._waking.pop()
            self.parked += 1
        elif self.ready > 1:
            self.ready -= 1
            self.parked += may_sleep
