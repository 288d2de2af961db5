"""The Prometheus metrics of an engine's KV tiers. Numbers only; must not know the registry."""

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.observations import TierStats

PREFIX = "headwater:kv_tier_"
_LABELS = ("model_name", "engine")


def collect_tiers(stats: TierStats, labels: Sequence[str]) -> Iterator[Metric]:
    """``labels``: values of the model's name and the engine's id."""

    def counter(name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=_LABELS)
        family.add_metric(labels, value)
        return family

    def gauge(name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=_LABELS)
        family.add_metric(labels, value)
        return family

    def by_kind(name: str, text: str, values: Mapping[str, int]) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=(*_LABELS, "kind"))
        for kind, value in values.items():
            family.add_metric([*labels, kind], value)
        return family

    yield gauge("connected", "1 while the node's cache is used.", stats.is_connected)
    yield counter("stored_blocks", "Copied to the arena.", stats.num_stored_blocks)
    yield by_kind("loaded_blocks", "Restored, by where they were.", stats.num_loaded_blocks)
    yield by_kind("failed_blocks", "Not what they should be.", stats.num_failed_blocks)
    yield counter("missing_slots", "Blocks lost for want of one.", stats.num_dropped_blocks)
    yield gauge("wanted_blocks", "That wait to be stored.", stats.num_wanted_blocks)
    yield counter("transfer_seconds", "Copying, both ways.", stats.transfer_s)
    yield counter("load_seconds", "Copying what was restored.", stats.load_s)
    yield counter("fetch_seconds", "Of the node, for what it found.", stats.fetch_s)
    yield counter("fetches", "Prompts that waited for the node.", stats.num_fetches)
    yield counter("fetch_timeouts", "Not answered in time.", stats.num_timeouts)
    yield counter("predictions", "Fetch times that were predicted.", stats.num_predictions)
    good = stats.num_good_predictions
    yield counter("predictions_within_25_percent", "Of them, those that held.", good)
    yield counter("shadow_checks", "Blocks computed again to compare.", stats.num_checks)
    yield counter("shadow_check_failures", "That differed.", stats.num_differing)
    yield counter("losses", "How often the node's cache went.", stats.num_losses)
