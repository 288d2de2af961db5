"""The autoscaler's page for Prometheus: what it sees, expects and wants, and why.

Must not know how any of it is found.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from autoscaler.observation import FleetObservation, ModelObservation
from autoscaler.plan import ForecastRecord, ModelPlan, Plan

PREFIX = "headwater:autoscaler_"


class Rounds(Protocol):
    """What the last round saw and decided; None before the first."""

    @property
    def observation(self) -> FleetObservation | None: ...

    @property
    def plan(self) -> Plan | None: ...

    @property
    def is_config_refused(self) -> bool: ...


class AutoscalerMetrics(Collector):
    """Reads the last round at the scrape."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def render(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Nothing ahead of time."""
        return ()

    def collect(self) -> Iterator[Metric]:
        refused = _gauge("config_refused", "Whether the newest configuration is wrong.")
        refused.add_metric([], self._rounds.is_config_refused)
        yield refused
        if self._rounds.observation is not None:
            yield from _seen(self._rounds.observation.models)
        plan = self._rounds.plan
        if plan is not None:
            yield from _wanted(plan.models)
            yield from _expected(plan.models)
            devices = _gauge("devices", "Accelerators that the plan takes.")
            devices.add_metric([], plan.num_devices)
            dry_run = _gauge("dry_run", "Whether plans are only logged.")
            dry_run.add_metric([], plan.is_dry_run)
            yield from (devices, dry_run)


def _seen(models: Iterable[ModelObservation]) -> Iterator[Metric]:
    replicas = _gauge("replicas", "Engine replicas that are there.", "model_name", "rung")
    silent = _gauge("silent_replicas", "Of those, how many no gateway hears of.", "model_name")
    known = _gauge("demand_known", "Whether all gateways said what came.", "model_name")
    for model in models:
        here = [replica for replica in model.replicas if not replica.is_draining]
        for rung, number in Counter(replica.rung for replica in here).items():
            replicas.add_metric([model.model, rung.name.lower()], number)
        silent.add_metric([model.model], sum(replica.load is None for replica in here))
        known.add_metric([model.model], model.demand is not None)
    yield from (replicas, silent, known)
    yield from _held(models)


def _held(models: Iterable[ModelObservation]) -> Iterator[Metric]:
    """What is unknown has no sample."""
    rooms = _gauge(
        "warm_rooms", "Replicas that find room where the weights are.", "model_name", "rung"
    )
    nodes = _gauge("node_rooms", "Replicas that would fit on all nodes.", "model_name")
    failed = _gauge("failed_nodes", "Nodes that can't hold the weights.", "model_name")
    for model in models:
        counts = {"staged": model.num_nodes_staged, "on_disk": model.num_nodes_on_disk}
        for rung, number in counts.items():
            if number is not None:
                rooms.add_metric([model.model, rung], number)
        if model.num_nodes is not None:
            nodes.add_metric([model.model], model.num_nodes)
        if model.num_nodes_failed is not None:
            failed.add_metric([model.model], model.num_nodes_failed)
    yield from (rooms, nodes, failed)


def _wanted(models: Iterable[ModelPlan]) -> Iterator[Metric]:
    wanted = _gauge("wanted_replicas", "What the plan asks for.", "model_name", "rung")
    exact = _gauge("wanted_exactly", "Before rounding and bounds.", "model_name")
    held = _gauge("held", "Whether the size stays whatever is wanted.", "model_name")
    causes = _gauge("cause", "1 for each reason behind the size.", "model_name", "cause")
    ready = _gauge("next_ready_seconds", "When another replica will serve.", "model_name")
    nodes = _gauge("wanted_node_rooms", "Replicas' worth of nodes to have.", "model_name")
    leads = _gauge(
        "promotion_seconds", "What nine of ten take from a rung to serving.", "model_name", "rung"
    )
    node_lead = _gauge(
        "node_lead_seconds", "From asking for a node until it could hold weights.", "model_name"
    )
    for model in models:
        sizes = {
            "serving": model.num_serving,
            "parked": model.num_parked,
            "staged": model.num_staged,
            "on_disk": model.num_on_disk,
        }
        for rung, number in sizes.items():
            wanted.add_metric([model.model, rung], number)
        nodes.add_metric([model.model], model.num_nodes)
        node_lead.add_metric([model.model], model.node_lead_s)
        for lead in model.leads:
            leads.add_metric([model.model, lead.rung.name.lower()], lead.lead_s)
        exact.add_metric([model.model], model.num_wanted)
        held.add_metric([model.model], model.is_held)
        for cause in model.causes:
            causes.add_metric([model.model, str(cause)], 1)
        if model.next_ready_s is not None:
            ready.add_metric([model.model], model.next_ready_s)
    yield from (wanted, exact, held, causes, ready, nodes, leads, node_lead)


def _expected(models: Iterable[ModelPlan]) -> Iterator[Metric]:
    labels = ("model_name", "lead")
    value = _gauge("forecast_replicas", "Load that won't be exceeded, in replicas.", *labels)
    last = _gauge("load_replicas", "Load now, in replicas.", *labels)
    horizon = _gauge("lead_seconds", "How far ahead is forecast.", *labels)
    quantile = _gauge("forecast_quantile", "With which probability.", *labels)
    coverage = _gauge("forecast_coverage", "Share of recent forecasts that held.", *labels)
    for model in models:
        for lead, forecast in _by_lead(model.forecasts):
            values = [model.model, lead]
            value.add_metric(values, forecast.value)
            last.add_metric(values, forecast.last_value)
            horizon.add_metric(values, forecast.horizon_s)
            quantile.add_metric(values, forecast.quantile)
            if forecast.coverage is not None:
                coverage.add_metric(values, forecast.coverage)
    yield from (value, last, horizon, quantile, coverage)


def _by_lead(forecasts: Iterable[ForecastRecord]) -> Iterator[tuple[str, ForecastRecord]]:
    """Numbered, shortest first: seconds would be another series with each measurement."""
    ordered = sorted(forecasts, key=lambda forecast: forecast.horizon_s)
    return ((str(position), forecast) for position, forecast in enumerate(ordered))


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=labels)
