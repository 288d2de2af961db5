"""What a node's weights have counted since the start, for metrics."""

from collections import Counter
from dataclasses import dataclass, field

from cache_tiers.weights.chunk_messages import PeerCounts


@dataclass(slots=True)
class WeightsCounts:
    """Owner: ``NodeWeights``; others read. On its event loop."""

    num_promotions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Those that succeeded, by rung and by where the bytes came from."""
    num_promoted_bytes: Counter[str] = field(default_factory=Counter)
    """By where they came from."""
    num_failures: Counter[str] = field(default_factory=Counter)
    """Promotions that didn't reach their goal, by the class of the `WeightsError`."""
    num_failed_origins: Counter[str] = field(default_factory=Counter)
    """Times that a place failed and the next one was asked, if there was one: by kind of place."""
    num_broken_off: int = 0
    """Promotions that nobody wanted any more."""
    num_demoted: int = 0
    """Models that left memory since nobody wanted them there."""
    num_evicted: int = 0
    """Models that left memory for others."""
    num_removed: int = 0
    """Models that left the disk for others."""
    num_kept: int = 0
    """Models that were copied from memory to the disk."""
    num_not_kept: int = 0
    """Models that could not be."""
    num_adopted: int = 0
    """Files that ranks made and that are kept for others."""
    num_outdated: int = 0
    """Times that a model's source had other weights than this node."""
    peers: PeerCounts = field(default_factory=PeerCounts)
