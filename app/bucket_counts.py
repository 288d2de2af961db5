"""A histogram that costs next to nothing per value, for what happens with every streamed event.

``prometheus_client``'s takes a lock and scans its buckets. Written by one event loop only.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class BucketCounts:
    """The values of one series."""

    __slots__ = ("_bounds", "_counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """``bounds``: ascending, each one the largest value of its bucket."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """As Prometheus wants them: each bucket holds those below it, too."""
        total = 0
        buckets = []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), float(total)))
        return buckets


class BucketCountsByModel(Collector):
    """One family, a series per model; the caller bounds the names of the models."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(bounds)
        self._series: dict[str, BucketCounts] = {}

    def of(self, model: str) -> BucketCounts:
        """The series, made when it is first asked for."""
        series = self._series.get(model)
        if series is None:
            series = self._series[model] = BucketCounts(self._bounds)
        return series

    def collect(self) -> Iterable[Metric]:
        family = HistogramMetricFamily(self._name, self._text, labels=["model_name"])
        for model, series in self._series.items():
            family.add_metric([model], series.cumulative(), series.sum)
        yield family
