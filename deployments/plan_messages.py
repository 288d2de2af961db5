"""What the plan holder tells the autoscaler and, in the end, people."""

from typing import Any

import msgspec

from autoscaler.plan import ModelPlan, PromotionLead
from cache_tiers.weights.messages import WeightsState

DECISIONS_PATH = "/decisions"
"""On the autoscaler's own port: `Decided` by model, `?last=N` of each."""
DEFAULT_DECISIONS = 10
WEIGHTS_PATH = "/weights"
"""There, too: `NodeStanding`s by model."""


class Decided(msgspec.Struct, frozen=True):
    """One model's part of one plan."""

    made_local_s: float
    is_dry_run: bool
    plan: ModelPlan


class Recalled(msgspec.Struct, frozen=True):
    """What the holder knows of the autoscaler before."""

    epoch: int
    """Of its newest plan; 0 without one."""
    leads: dict[str, tuple[PromotionLead, ...]]
    """By model."""
    node_times_s: tuple[float, ...] = ()


class ModelWeights(msgspec.Struct, frozen=True):
    """What nodes are told of a model whose weights their caches hold, as its ``args`` have it."""

    source: str
    node_cache: dict[str, Any]
    """A `NodeCacheConfig`."""
    source_sha256: str | None = None
    weights_sha256: str | None = None


class NodeStanding(msgspec.Struct, frozen=True):
    """What one node has of one model."""

    node_id: str
    state: WeightsState
    num_replicas: int
    """That find room there now."""


class ServeReport(msgspec.Struct, frozen=True):
    """What Serve's controller said of one model."""

    age_s: float
    target_num_replicas: int
    num_running: int
    min_replicas: int
    max_replicas: int
    bundle: dict[str, float]
    """Resources that a replica reserves."""
    weights: ModelWeights | None = None
    """None: its replicas bring them by themselves."""
