"""How long things take on a simulated replica: steps and transfers. Must not know requests."""

from dataclasses import dataclass
from typing import Protocol

from engine.performance_profile import StepCost
from engine.step_time import StepWork


@dataclass(frozen=True, slots=True)
class Bandwidths:
    """Of KV, in tokens; 0: there is no such tier or link."""

    host_tokens_per_s: float = 0.0
    """From the node's CPU memory to the accelerator."""
    disk_tokens_per_s: float = 0.0
    """From its NVMe."""
    peer_tokens_per_s: float = 0.0
    """Over a replica's network link, to or from all peers together."""


NO_TRANSFERS = Bandwidths()


class PerformanceModel(Protocol):
    """Of one kind of replica. Pure."""

    @property
    def bandwidths(self) -> Bandwidths: ...

    def step_time_s(self, work: StepWork) -> float:
        """How long a step of ``work`` takes."""
        ...


@dataclass(frozen=True, slots=True)
class LinearModel:
    """A sum, as engines learn it of themselves."""

    cost: StepCost
    bandwidths: Bandwidths = NO_TRANSFERS

    def step_time_s(self, work: StepWork) -> float:
        return self.cost.predict(work)
