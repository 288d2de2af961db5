"""Acts on a policy in a fleet of simulated engines, once per tick: starts take the lead, waking
takes its own time, and who is given up drains. Owner of what is on its way, of what sleeps and of
the cost; must not know how replicas work.

A replica that is put to sleep or given up costs until its last answer has ended. Who sleeps has no
cache any more, so that one that wakes is as new.
"""

import math
from collections import deque
from typing import Protocol

from autoscaler.observation import ModelObservation
from simulator.scaling.fleet_sight import OnTheWay
from simulator.scaling.view import ScalingPolicy, ScalingSetting, ScalingView, Wanted


class ScalableFleet(Protocol):
    """What a fleet can do and count."""

    @property
    def num_serving(self) -> int:
        """Draining ones not included."""
        ...

    @property
    def num_draining(self) -> int: ...

    @property
    def num_ongoing(self) -> int:
        """Requests that run or wait."""
        ...

    @property
    def num_waiting(self) -> int:
        """Without a first token."""
        ...

    @property
    def num_arrived(self) -> int:
        """In the tick that ends."""
        ...

    def join(self) -> None:
        """One more serves."""
        ...

    def drain_one(self) -> None:
        """One less: whoever has least to do. Precondition: two or more serve."""
        ...

    def observe(self, on_the_way: OnTheWay) -> ModelObservation:
        """As the production autoscaler is shown it."""
        ...


class FleetScaler:
    """Of one fleet."""

    def __init__(self, policy: ScalingPolicy, setting: ScalingSetting) -> None:
        self._policy = policy
        self.setting = setting
        self._starting: deque[float] = deque()
        """When each was asked for, in this order; likewise the next one."""
        self._waking: deque[float] = deque()
        self.num_parked = 0
        self.replica_s = 0.0
        """Parked seconds at their own cost."""
        self.num_changes = self.num_flaps = 0
        self._last = (0, -math.inf)
        """Direction and time of the last change."""
        self._scored_from_s = self._ticked_s = 0.0

    @property
    def num_pending(self) -> int:
        return len(self._starting) + len(self._waking)

    def begin(self, now_s: float) -> None:
        """Costs and changes count from then on."""
        self._scored_from_s = self._ticked_s = now_s

    def _admit(self, fleet: ScalableFleet, now_s: float) -> None:
        """Whoever is ready by now serves."""
        for moving, time_s in (
            (self._starting, self.setting.lead_s),
            (self._waking, self.setting.wake_s),
        ):
            while moving and moving[0] + time_s <= now_s:
                moving.popleft()
                fleet.join()

    def tick(self, fleet: ScalableFleet, now_s: float) -> None:
        """Look, ask the policy, and act."""
        num_there = fleet.num_serving + fleet.num_draining + self.num_pending
        cost = num_there + self.setting.parked_cost * self.num_parked
        if now_s > self._ticked_s:
            self.replica_s += cost * (now_s - self._ticked_s)
            self._ticked_s = now_s
        self._admit(fleet, now_s)
        view = ScalingView(
            now_s,
            fleet.num_arrived,
            fleet.num_waiting,
            fleet.num_ongoing,
            fleet.num_serving,
            self.num_pending,
            self.num_parked,
            lambda: fleet.observe(
                OnTheWay(tuple(self._starting), len(self._waking), self.num_parked)
            ),
        )
        self._resize(fleet, now_s, self._policy.size(view))

    def _resize(self, fleet: ScalableFleet, now_s: float, wanted: Wanted) -> None:
        most = self.setting.max_replicas
        num_serving = min(max(1, wanted.num_serving), most)
        num_parked = min(max(0, wanted.num_parked), most - num_serving)
        change = num_serving - fleet.num_serving - self.num_pending
        if change:
            self._count(now_s, 1 if change > 0 else -1)
        for _ in range(change):
            if self.num_parked:
                self.num_parked -= 1
                self._waking.append(now_s)
            else:
                self._starting.append(now_s)
        for _ in range(-change):
            self._shrink(fleet, may_sleep=self.num_parked < num_parked)
        self.num_parked = min(self.num_parked, num_parked)

    def _shrink(self, fleet: ScalableFleet, *, may_sleep: bool) -> None:
        if self._starting:
            self._starting.pop()
        elif self._waking:
            self._waking.pop()
            self.num_parked += 1
        elif fleet.num_serving > 1:
            fleet.drain_one()
            self.num_parked += may_sleep

    def _count(self, now_s: float, direction: int) -> None:
        if now_s > self._scored_from_s:
            is_reversal = direction != self._last[0]
            self.num_flaps += is_reversal and now_s - self._last[1] <= 2 * self.setting.lead_s
            self.num_changes += 1
        self._last = (direction, now_s)
