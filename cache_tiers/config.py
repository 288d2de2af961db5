"""The node cache's section of the configuration. Frozen; unknown keys are errors; units stand in
names."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

GIB = 1024**3
MAX_LOAD_TIMEOUT_S = 600.0


class DiskConfig(BaseModel):
    """A folder on a local device, for one node cache alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: Path
    """Several devices are striped: one entry for each."""
    max_bytes: int = Field(ge=64 * 1024**2)
    """Of segment files, preallocated as they are needed."""


class ObjectStoreConfig(BaseModel):
    """A bucket for prefixes that live long and are shared by the whole cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(pattern=r"^s3://[^/]+(/.*)?$")
    """`s3://bucket/prefix`; credentials are those that boto3 finds."""
    min_ttl_s: float = Field(default=3600.0, gt=0)
    """Only what is pinned for at least so long goes there."""


class WeightsConfig(BaseModel):
    """The node's weights: brought once for all replicas of the node, kept in CPU memory for those
    to come, and lent to other nodes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host_bytes: int = Field(default=0, ge=0)
    """CPU memory of the node for weights, all models together, beside that for KV; 0: they are on
    its disk only."""
    disk_bytes: int | None = Field(default=None, ge=0)
    """Of models in `HEADWATER_HOME`: those beyond it that nobody uses leave; absent: none do."""
    max_bytes_per_s: float | None = Field(default=None, gt=0)
    """A node reads no faster from a model's source; absent: as fast as it can."""
    keep_on_disk: bool = True
    """What was staged is written to the disk, too, in the background."""
    trust_libraries: bool = False
    """Load compiled code that a model's source has beside it (`headwater models publish` puts it
    there): whoever may write to the source can then run code on the nodes. Otherwise each node
    compiles its own once."""


class NodeCacheConfig(BaseModel):
    """The tiers of every node that runs replicas of the model; replicas of one node share them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host_bytes: int = Field(default=4 * GIB, ge=16 * 1024**2)
    """CPU memory of the node for KV, all models together."""
    disks: tuple[DiskConfig, ...] = ()
    """None: what CPU memory drops is gone."""
    object_store: ObjectStoreConfig | None = None
    """For prefixes that live long; absent: they live as long as the nodes that hold them."""
    policy: Literal["value", "lru", "s3fifo", "arc"] = "value"
    """What leaves first: ``value``: what saves the least computing per byte and time since its last
    use, which is LRU among blocks of one model; the others are known policies to compare with."""
    pin_quota_bytes: int = Field(default=1 * GIB, ge=0)
    """Most that one tenant's pinned prefixes take."""
    load_timeout_s: float = Field(default=2.0, gt=0, le=MAX_LOAD_TIMEOUT_S)
    """A prompt waits no longer for a tier; what is not there by then is computed."""
    weights: WeightsConfig | None = None
    """Absent: each replica brings its model to the node's disk by itself."""
    max_idle_s: float = Field(default=600.0, gt=0)
    """The cache ends itself when no engine has used the node for so long; disks stay warm."""
