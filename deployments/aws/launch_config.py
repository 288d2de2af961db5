"""How workers of one pool are launched: the ``node_config`` of a node type in Ray's autoscaler
file, which Terraform writes.

Knows no AWS client.
"""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Market(StrEnum):
    """Where capacity comes from."""

    CAPACITY_BLOCK = "capacity-block"
    """Paid for ahead, for days."""
    RESERVATION = "reservation"
    """On-demand capacity that is held for the account."""
    SPOT = "spot"
    ON_DEMAND = "on-demand"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LaunchTemplate(_Part):
    id: str = Field(pattern=r"^lt-[0-9a-f]+$")
    version: str = Field(min_length=1)
    """A number: what is launched changes only with the autoscaler's file."""


class Offer(_Part):
    """One market, with all that may be asked of it."""

    market: Market
    launch_template: LaunchTemplate
    instance_types: tuple[str, ...] = Field(min_length=1)
    """In the order of preference."""
    subnets: dict[str, str] = Field(min_length=1)
    """Subnet of each zone."""


class LaunchConfig(_Part):
    """Offers in the order in which they are tried."""

    offers: tuple[Offer, ...] = Field(min_length=1)
