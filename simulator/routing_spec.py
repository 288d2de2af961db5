"""What a fleet of the routing model is made of, and what changes while it serves. Data only."""

from dataclasses import dataclass
from typing import NamedTuple

from app.routing.candidate import ReplicaRates
from simulator.errors import FleetSpecError
from simulator.routing_cache import TierCapacities
from simulator.workload import SimulatedRequest


@dataclass(frozen=True, slots=True)
class RoutingSpec:
    """A fleet, and what its gateways know."""

    num_replicas: int
    rates: ReplicaRates
    cache_tokens: int
    """On a replica's accelerator."""
    host_tokens: int = 0
    disk_tokens: int = 0
    answer_token_s: float = 0.025
    num_gateways: int = 1
    """Requests go to them in turn."""
    stale_s: float = 0.0
    """A gateway learns so much later what others sent; its own sends it knows at once."""
    told_blocks: int = 31_250
    """Per replica, that a router without cache events remembers, as llm-d's does."""

    def __post_init__(self) -> None:
        if self.num_replicas < 1 or self.num_gateways < 1:
            raise FleetSpecError("a fleet needs at least one replica and one gateway")
        if not 0 <= self.stale_s < float("inf"):
            raise FleetSpecError(f"stale_s is {self.stale_s}; it must be 0 or more seconds")
        if not self.rates.prefill_token_s > 0:
            raise FleetSpecError("rates.prefill_token_s must be above 0 s")

    def capacities(self, block_size_tokens: int) -> TierCapacities:
        return TierCapacities(
            self.cache_tokens // block_size_tokens,
            self.host_tokens // block_size_tokens,
            self.disk_tokens // block_size_tokens,
        )


class FleetChange(NamedTuple):
    """A replica more, or one less."""

    when_s: float
    lost_engine_id: str | None = None
    """None: one joins, empty."""


def prefill_s(rates: ReplicaRates, request: SimulatedRequest, num_cached_tokens: int) -> float:
    """Of what is not cached, on a replica that does nothing else."""
    num_uncached = request.num_prompt_tokens - num_cached_tokens
    mean_position = (request.num_prompt_tokens + num_cached_tokens) / 2
    return (
        rates.prefill_base_s
        + rates.prefill_token_s * num_uncached
        + rates.prefill_attended_s * num_uncached * mean_position
    )
