"""What was predicted of loads, and what came of it."""

from dataclasses import dataclass

from cache_tiers.tier import TierKind

_TOLERANCE = 0.25


@dataclass(slots=True)
class LoadCounters:
    """Of the fetches of which a medium took the longest; of the host, copies to accelerators."""

    num_fetches: int = 0
    num_as_predicted: int = 0
    """It took within 25 % of what was predicted."""
    predicted_s: float = 0.0
    fetch_s: float = 0.0


class LoadRecord:
    """Owner: one node's cache."""

    def __init__(self) -> None:
        self.by_kind = {kind: LoadCounters() for kind in TierKind}
        self.num_recomputed_blocks = 0
        """That could have been loaded, and were not worth it."""
        self.num_timeouts = 0
        """Fetches that were answered with less than was chosen, since it did not come in time."""

    def note(self, kind: TierKind, predicted_s: float, fetch_s: float, *, is_late: bool) -> None:
        counters = self.by_kind[kind]
        counters.num_fetches += 1
        counters.predicted_s += predicted_s
        counters.fetch_s += fetch_s
        self.num_timeouts += is_late
        if not is_late and abs(fetch_s - predicted_s) <= _TOLERANCE * predicted_s:
            counters.num_as_predicted += 1
