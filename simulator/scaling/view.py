"""What a scaling policy may know at one tick, and what it may ask for: published policies and our
own alike. Must not know what comes next, nor who replays it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from autoscaler.observation import ModelObservation
from simulator.errors import FleetSpecError


@dataclass(frozen=True, slots=True)
class ScalingSetting:
    """One kind of replica, and how long its ways up take."""

    replica_rps: float
    """Requests/s that one serves within its targets."""
    lead_s: float
    """From the decision until a replica that did not exist serves."""
    tick_s: float = 10.0
    """Between decisions."""
    wake_s: float = 0.0
    """From PARKED to SERVING; what is started as well as what wakes takes whole ticks."""
    parked_cost: float = 1.0
    """Of a second asleep, in seconds of a replica that serves."""
    replica_concurrency: float = 1.0
    """Requests in one replica at ``replica_rps``."""
    max_replicas: int = 100_000
    late_cost: float | None = None
    """As in ``autoscaler.config.ModelScalingConfig``; None: its default. Others don't know it."""

    def __post_init__(self) -> None:
        if not 0 < self.replica_rps < float("inf"):
            raise FleetSpecError(f"replica_rps is {self.replica_rps}: take requests/s above 0")
        if not 0 <= self.lead_s <= 86_400:
            raise FleetSpecError(f"lead_s is {self.lead_s}: take 0 to 86,400 s")
        if not 0 < self.tick_s <= 600:
            raise FleetSpecError(f"tick_s is {self.tick_s}: take a part of the trace's 600 s")
        if not 0 <= self.wake_s <= 86_400:
            raise FleetSpecError(f"wake_s is {self.wake_s}: take 0 to 86,400 s")
        if not 0 <= self.parked_cost <= 1:
            raise FleetSpecError(f"parked_cost is {self.parked_cost}: take 0 to 1")
        if not self.replica_concurrency > 0 or self.max_replicas < 1:
            raise FleetSpecError("replica_concurrency and max_replicas must be above 0")


class ScalingView(NamedTuple):
    """The fleet at the end of a tick."""

    now_s: float
    """When the tick began."""
    num_arrived: float
    """In the tick."""
    num_queued: float
    """Not served in their tick; they wait."""
    num_ongoing: float
    """In replicas or waiting: what Serve calls ongoing requests."""
    ready: int
    """Replicas that serve."""
    pending: int
    """On their way to serve, waking ones included."""
    parked: int = 0
    """Asleep."""
    observe: Callable[[], ModelObservation] | None = None
    """All that production code sees, made when asked for, once per tick; None: there is no more
    than these numbers."""


class Wanted(NamedTuple):
    """What a policy asks for."""

    num_serving: int
    """Those on their way included."""
    num_parked: int = 0


class ScalingPolicy(Protocol):
    """Asked once per tick, in order; what it remembers is its own."""

    def size(self, view: ScalingView) -> Wanted: ...
