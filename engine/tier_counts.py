"""Counts what the KV tiers did for one engine since start. Must not know the node."""

from collections import Counter
from dataclasses import dataclass, field

from cache_tiers.messages import Fetched
from cache_tiers.tier import TierKind
from engine.observations import TierStats
from engine.step import StepPlan, StepResult

_GOOD_PREDICTION = 0.25
"""Off by at most this share of what it took."""


@dataclass(slots=True)
class TierCounts:
    """Owner of the totals that ``TierStats`` reports."""

    num_stored: int = 0
    num_loaded_of: Counter[TierKind] = field(default_factory=Counter)
    num_failed_of: Counter[TierKind] = field(default_factory=Counter)
    transfer_s: float = 0.0
    load_s: float = 0.0
    fetch_s: float = 0.0
    num_fetches: int = 0
    num_timeouts: int = 0
    num_predictions: int = 0
    num_good_predictions: int = 0
    num_checks: int = 0
    num_differing: int = 0
    num_losses: int = 0

    def record_step(self, plan: StepPlan, result: StepResult) -> None:
        """Of a plan that was carried out."""
        self.num_stored += len(plan.stores)
        self.transfer_s += result.transfer_s
        self.num_checks += len(plan.comparisons)
        self.num_differing += len(result.differing)

    def record_load(self, kind: TierKind, *, is_good: bool) -> None:
        counter = self.num_loaded_of if is_good else self.num_failed_of
        counter[kind] += 1

    def record_fetch(self, fetched: Fetched) -> None:
        """Of one that found something. What lay in the arena needs no prediction."""
        self.fetch_s += fetched.fetch_s
        if all(image.kind is TierKind.HOST for image in fetched.images):
            return
        self.num_predictions += 1
        error_s = abs(fetched.fetch_s - fetched.predicted_s)
        self.num_good_predictions += error_s <= _GOOD_PREDICTION * fetched.fetch_s

    def stats(self, *, is_connected: bool, num_dropped: int, num_wanted: int) -> TierStats:
        return TierStats(
            is_connected=is_connected,
            num_stored_blocks=self.num_stored,
            num_loaded_blocks={kind.value: num for kind, num in self.num_loaded_of.items()},
            num_failed_blocks={kind.value: num for kind, num in self.num_failed_of.items()},
            num_dropped_blocks=num_dropped,
            num_wanted_blocks=num_wanted,
            transfer_s=self.transfer_s,
            load_s=self.load_s,
            fetch_s=self.fetch_s,
            num_fetches=self.num_fetches,
            num_timeouts=self.num_timeouts,
            num_predictions=self.num_predictions,
            num_good_predictions=self.num_good_predictions,
            num_checks=self.num_checks,
            num_differing=self.num_differing,
            num_losses=self.num_losses,
        )
