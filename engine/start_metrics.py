"""The Prometheus metrics of a replica's start. Must not know the registry."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from engine.start_stages import ReplicaStart

_PREFIX = "headwater:start"
_LABELS = ("model_name", "engine")


def collect_start(start: ReplicaStart, labels: Sequence[str]) -> Iterator[Metric]:
    """``labels``: values of the model's name and the engine's id."""
    total = GaugeMetricFamily(
        f"{_PREFIX}_seconds",
        "From asked for to ready; rung: where the weights stood on the node.",
        labels=[*_LABELS, "rung"],
    )
    total.add_metric([*labels, start.started_from.name.lower()], start.total_s)
    yield total
    stages = GaugeMetricFamily(
        f"{_PREFIX}_stage_seconds", "Parts of the start.", labels=[*_LABELS, "stage"]
    )
    times_s: dict[str, float] = {}
    for stage in start.stages:  # a label's value stands once
        times_s[stage.name] = times_s.get(stage.name, 0.0) + stage.time_s
    for name, time_s in times_s.items():
        stages.add_metric([*labels, name], time_s)
    yield stages
