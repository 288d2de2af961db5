"""The series of a node's weights, on the page of its cache. Must not know how they are brought."""

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from cache_tiers.weights.chunk_server import ChunkServerStats
from cache_tiers.weights.messages import NodeWeightsReport, WeightsState
from engine.weights.weights_counts import WeightsCounts

PREFIX = "headwater:weights_"


def collect_weights(
    report: NodeWeightsReport, counts: WeightsCounts, lent: ChunkServerStats
) -> Iterator[Metric]:
    """``lent``: what other nodes took."""
    free_bytes = max(0, report.host_bytes - report.used_bytes)
    yield _gauge(
        "bytes",
        "Memory for weights.",
        {("used",): report.used_bytes, ("free",): free_bytes},
        "state",
    )
    yield from _collect_models(report.models)
    yield from _collect_counts(counts)
    yield _counter("lent_bytes", "Sent to other nodes.", {(): lent.num_sent_bytes})


def _collect_models(models: tuple[WeightsState, ...]) -> Iterator[Metric]:
    yield _gauge(
        "rung",
        "Reached: 0 neither in memory nor on the disk, 1 on the disk, 2 in memory.",
        {(each.model,): each.rung for each in models},
        "model_name",
    )
    yield _gauge(
        "rung_wanted",
        "As ordered: a failure keeps it from being reached, or it is on its way.",
        {(each.model,): each.wanted for each in models},
        "model_name",
    )
    yield _gauge(
        "leases",
        "Replicas that use them.",
        {(e.model,): e.num_leases for e in models},
        "model_name",
    )
    yield _gauge(
        "progress_ratio",
        "Of the promotion that is under way; 1 without one.",
        {(each.model,): _progress(each) for each in models},
        "model_name",
    )
    yield _gauge(
        "stage_seconds",
        "What the last promotion took, part by part.",
        _stages({(each.model,): each for each in models}),
        "model_name",
        "stage",
    )


def _progress(state: WeightsState) -> float:
    if state.rung >= state.wanted:
        return 1.0
    return state.num_done_bytes / state.num_bytes if state.num_bytes else 0.0


def _stages(states: Mapping[tuple[str], WeightsState]) -> dict[tuple[str, ...], float]:
    """A label's value stands once."""
    times_s: dict[tuple[str, ...], float] = {}
    for (model,), state in states.items():
        for stage in state.stages:
            key = (model, stage.name)
            times_s[key] = times_s.get(key, 0.0) + stage.time_s
    return times_s


def _collect_counts(counts: WeightsCounts) -> Iterator[Metric]:
    yield _counter(
        "brought_bytes",
        "Of promotions that succeeded, by where they came from.",
        {(origin or "nowhere",): num for origin, num in counts.num_promoted_bytes.items()},
        "origin",
    )
    yield _counter(
        "promotions",
        "That succeeded.",
        {(r.lower(), o or "nowhere"): num for (r, o), num in counts.num_promotions.items()},
        "rung",
        "origin",
    )
    yield _counter(
        "failures",
        "Promotions that failed.",
        {(kind,): num for kind, num in counts.num_failures.items()},
        "kind",
    )
    yield _counter(
        "failed_origins",
        "Times that a place didn't give what it should have, and the next one was asked.",
        {(kind,): num for kind, num in counts.num_failed_origins.items()},
        "origin",
    )
    peers = counts.peers
    faults: dict[tuple[str, ...], float] = {
        ("corrupt",): peers.num_corrupt,
        ("lost",): peers.num_lost,
        ("stalled",): peers.num_stalled,
        ("busy",): peers.num_busy,
        ("slow",): peers.num_slow,
    }
    yield _counter(
        "peer_faults", "Why chunks had to come from elsewhere; corrupt: of one.", faults, "kind"
    )
    for name, number, what in (
        ("broken_off", counts.num_broken_off, "Promotions that nobody wanted any more."),
        ("demoted", counts.num_demoted, "Models that left memory as nobody wanted them there."),
        ("evicted", counts.num_evicted, "Models that left memory for others."),
        ("removed", counts.num_removed, "Models that left the disk for others."),
        ("kept", counts.num_kept, "Models that were copied from memory to the disk."),
        ("not_kept", counts.num_not_kept, "Models that could not be."),
        ("adopted", counts.num_adopted, "Files that ranks made and that are kept for others."),
        ("outdated", counts.num_outdated, "Times that a source had other weights than the node."),
    ):
        yield _counter(name, what, {(): number})


def _gauge(
    name: str, what: str, figures: Mapping[tuple[str, ...], float], *labels: str
) -> GaugeMetricFamily:
    metric = GaugeMetricFamily(PREFIX + name, what, labels=labels)
    for values, figure in figures.items():
        metric.add_metric(values, float(figure))
    return metric


def _counter(
    name: str, what: str, figures: Mapping[tuple[str, ...], float], *labels: str
) -> CounterMetricFamily:
    metric = CounterMetricFamily(PREFIX + name, what, labels=labels)
    for values, figure in figures.items():
        metric.add_metric(values, float(figure))
    return metric
