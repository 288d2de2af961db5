"""What a cluster on AWS tells of itself: written by Terraform as JSON into an SSM parameter, read
by whoever deploys onto it, and by its own nodes.

Knows no AWS client.
"""

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from deployments.aws.launch_config import Market

CARD_FORMAT = 1
_NAME = r"[a-z][a-z0-9-]{1,30}[a-z0-9]"

ClusterName = Annotated[str, Field(pattern=f"^{_NAME}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PoolCard(_Part):
    """A kind of workers."""

    instance_types: tuple[str, ...] = Field(min_length=1)
    """In the order of preference."""
    min_nodes: int = Field(ge=0)
    max_nodes: int = Field(ge=0)
    num_devices: int = Field(ge=0)
    """Accelerators of a node."""
    markets: tuple[Market, ...] = Field(min_length=1)
    """In the order in which they are tried."""


class ClusterCard(_Part):
    """Names, never secrets."""

    format: Literal[1]
    name: ClusterName
    region: str = Field(min_length=1)
    endpoint: str = Field(pattern=r"^https?://")
    """Where clients are answered."""
    head_group: str = Field(min_length=1)
    """Auto scaling group of the head."""
    dashboard_port: int = Field(gt=0, lt=65536)
    """Of Serve's REST API, on the head's own address: reached through SSM."""
    weights_bucket: str = Field(min_length=3)
    config_bucket: str = Field(min_length=3)
    ray_token_secret_arn: str = Field(pattern=r"^arn:")
    events_queue_url: str = Field(pattern=r"^https?://")
    pools: dict[str, PoolCard] = Field(min_length=1)


def card_parameter(cluster: str) -> str:
    """Name of the SSM parameter."""
    return f"/headwater/{_checked(cluster)}/card"


def serve_config_parameter(cluster: str) -> str:
    """Name of the SSM parameter that holds the key, in the config bucket, of what is deployed."""
    return f"/headwater/{_checked(cluster)}/serve-config"


def _checked(cluster: str) -> str:
    """Raises ``ValueError`` for what can't be a cluster's name."""
    if not re.fullmatch(_NAME, cluster):
        raise ValueError(
            f"{cluster!r} is no cluster's name: 3 to 32 lower-case letters, digits and hyphens"
        )
    return cluster
