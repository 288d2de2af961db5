"""The Prometheus metrics of an engine's moves on the warm ladder. Must not know the registry."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from engine.rung_keeper import RungKeeper

_PREFIX = "headwater:rung"
_LABELS = ("model_name", "engine")


def collect_rung(keeper: RungKeeper, labels: Sequence[str]) -> Iterator[Metric]:
    """``labels``: values of the model's name and the engine's id."""

    def counter(name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(_PREFIX + name, text, labels=_LABELS)
        family.add_metric(labels, value)
        return family

    def gauge(name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(_PREFIX + name, text, labels=_LABELS)
        family.add_metric(labels, value)
        return family

    state, counts = keeper.state, keeper.counts
    yield gauge("", "4 serves, 3 is parked: asleep without a KV pool.", state.rung)
    yield gauge("_moving", "1 while it leaves its rung.", state.is_moving)
    yield counter("_sleeps", "From serving to parked.", counts.num_sleeps)
    yield counter("_wakes", "From parked to serving.", counts.num_wakes)
    yield counter("_failed_wakes", "That found no memory.", counts.num_failed_wakes)
    yield gauge("_last_sleep_seconds", "Running requests included.", state.sleep_s)
    yield gauge("_last_wake_seconds", "From the order to the first credit.", state.wake_s)
