"""What a node's hierarchy counts: a snapshot for metrics and tests."""

from collections.abc import Mapping
from dataclasses import dataclass

from cache_tiers.tier import TierKind


@dataclass(frozen=True, slots=True)
class LoadStats:
    """Of fetches of which this medium took the longest, since the start; of the host, copies to
    accelerators.
    """

    num_fetches: int
    num_as_predicted: int
    """It took within 25 % of the prediction."""
    predicted_s: float
    fetch_s: float
    num_loaded: int
    """Images, for whatever purpose."""
    num_failed: int
    """That were not there, not sound, or not to be had."""
    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class NodeStoreStats:
    """Numbers of what happened count since the start; the others are of now."""

    num_blocks: int
    """On any medium of the node."""
    num_leases: int
    num_granted: int
    num_committed: int
    num_known: int
    """Commits of what the arena had."""
    num_evicted: int
    """From the arena."""
    num_dropped: int
    """Of these, not on disk afterwards."""
    num_demoted: int
    """Written to disk."""
    num_demotions_overflowed: int
    num_demotions_refused: int
    num_disk_evicted: int
    num_discarded: int
    """Found bad by an engine."""
    num_pinned: int
    pinned_bytes: int
    num_pins_refused: int
    num_early_demotions: int
    """For a pause that is likely to be long."""
    num_promoted: int
    """Brought before they were asked for."""
    num_recomputed: int
    """Blocks that could have been loaded, and were not worth it."""
    num_timeouts: int
    num_lent: int
    num_objects_written: int
    num_objects_failed: int
    loads: Mapping[TierKind, LoadStats]
