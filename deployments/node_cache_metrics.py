"""The node cache's page for Prometheus: every count of its parts under one name each.

`headwater:node_cache_<part>_<count>`, with a label for the tier where a count has one figure per
tier. Counts that only rise end in `_total`. Weights have series of their own beside them. Must not
know what they mean.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cache_tiers.node_cache import NodeCacheStats
from cache_tiers.tier import TierKind

PREFIX = "headwater:node_cache_"
_NOW = frozenset(
    {f"store_{count}" for count in ("blocks", "leases", "granted", "pinned", "pinned_bytes")}
    | {f"store_loads_{count}" for count in ("bytes_per_s", "latency_s")}
    | {f"engines_{count}" for count in ("engines", "granted_slots", "fetches")}
    | {f"disk_{count}" for count in ("images", "used_bytes", "max_bytes", "journal_records")}
    | {f"disk_{count}" for count in ("folders", "accepting")}
)
"""Figures that fall as well as rise."""


class NodeCacheMetrics(Collector):
    """Reads the counts at the scrape."""

    def __init__(
        self,
        stats: Callable[[], NodeCacheStats],
        collect_weights: Callable[[], Iterable[Metric]] = tuple,
    ) -> None:
        self._stats = stats
        self._collect_weights = collect_weights
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time: what a node has depends on its configuration."""
        return ()

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for part in fields(stats):
            counts = getattr(stats, part.name)
            if counts is not None:
                yield from _metrics(part.name, counts)
        yield from self._collect_weights()


def _metrics(part: str, counts: Any) -> Iterator[Metric]:
    for field in fields(counts):
        value = getattr(counts, field.name)
        if is_dataclass(value):
            yield from _metrics(part, value)
        elif isinstance(value, Mapping):
            yield from _tier_metrics(f"{part}_{field.name}", value)
        else:
            yield _metric(part, field.name, {(): value})


def _tier_metrics(part: str, counts_of: Mapping[TierKind, Any]) -> Iterator[Metric]:
    for field in fields(next(iter(counts_of.values()))) if counts_of else ():
        figures: dict[tuple[str, ...], float] = {
            (str(kind),): getattr(counts, field.name) for kind, counts in counts_of.items()
        }
        yield _metric(part, field.name, figures, labels=["tier"])


def _metric(
    part: str, count: str, figures: Mapping[tuple[str, ...], float], labels: Sequence[str] = ()
) -> Metric:
    name = f"{part}_{count.removeprefix('num_')}"
    kind = GaugeMetricFamily if name in _NOW else CounterMetricFamily
    metric = kind(PREFIX + name, f"{part}: {count.replace('_', ' ')}", labels=labels)
    for values, figure in figures.items():
        metric.add_metric(values, float(figure))
    return metric
