"""What an environment's ``cluster.auto.tfvars.json`` says that costs money.

Knows no prices.
"""

from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from deployments.aws.cluster_card import ClusterName
from deployments.aws.launch_config import Market
from deployments.cost.errors import ClusterFileUnfit

NUM_INTERFACE_ENDPOINTS = 12
"""In each zone; the module `network` makes them."""


class _Part(BaseModel):
    # Terraform checks the rest, and knows more variables.
    model_config = ConfigDict(extra="ignore", frozen=True)


class MarketPlan(_Part):
    market: Market
    instance_type: str | None = None
    """Of a block or a reservation; else the pool's first."""


class PoolPlan(_Part):
    instance_types: tuple[str, ...] = Field(min_length=1)
    min_nodes: int = Field(ge=0)
    max_nodes: int = Field(ge=0)
    num_devices: int = Field(ge=0)
    markets: tuple[MarketPlan, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if self.max_nodes < self.min_nodes:
            raise ValueError(f"max_nodes {self.max_nodes} is below min_nodes {self.min_nodes}")
        return self

    def type_of(self, market: MarketPlan) -> str:
        return market.instance_type or self.instance_types[0]


class HeadPlan(_Part):
    instance_types: tuple[str, ...] = Field(min_length=1)
    memory_db: bool = False


class ClusterPlan(_Part):
    name: ClusterName
    region: str = Field(min_length=1)
    zones: tuple[str, ...] = Field(min_length=1)
    nat_per_zone: bool = True
    head: HeadPlan
    pools: dict[str, PoolPlan] = Field(min_length=1)

    @property
    def num_nat_gateways(self) -> int:
        return len(self.zones) if self.nat_per_zone else 1


def cluster_plan(content: Any, name: str) -> ClusterPlan:
    """``name`` is said in errors. Raises `ClusterFileUnfit`."""
    try:
        return ClusterPlan.model_validate(content)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(str(part) for part in fault["loc"]) or "the file"
        raise ClusterFileUnfit(f"{name}: {place}: {fault['msg']}") from error
