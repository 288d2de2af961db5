"""Gauges of what waits and runs, read from the dispatchers at the scrape."""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge

from app.dispatch import Dispatcher
from app.member import Member
from cache_tiers.rung import Rung
from engine.messages import ServiceClass

_PREFIX = "headwater:"

_STATES = ("serving", "parked", "moving", "draining")


class DispatchGauges:
    """Owner of these gauges in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, labels: Sequence[str] = ("model_name",)) -> Gauge:
            return Gauge(_PREFIX + name, text, labels, registry=registry)

        self._waiting = gauge("gateway_requests_waiting", "Waiting for an engine.")
        self._running = gauge("gateway_requests_running", "Submitted to an engine.")
        self._engines = gauge("engines_accepting", "Connected engines that take requests.")
        self._rungs = gauge(
            "engines_on_rung",
            "Connected engines that stand on a rung of the warm ladder, move or drain.",
            ("model_name", "rung"),
        )
        self._seeded = Counter(
            _PREFIX + "prefixes_seeded",
            "Prefixes that were brought to engines before clients asked for them.",
            ["model_name"],
            registry=registry,
        )
        self._num_seeded: dict[str, int] = {}
        """Of those, how many each model's counter shows."""
        self._credits = gauge(
            "engine_credits", "Requests that the engine would take now.", ("model_name", "engine")
        )
        by_class = ("model_name", "service_class")
        self._depth = gauge("queue_depth", "Prompts that wait for an engine.", by_class)
        self._oldest_age = gauge("queue_oldest_age_seconds", "Longest wait so far.", by_class)
        self._estimated_wait = gauge(
            "queue_estimated_wait_seconds", "Of a request that came now.", by_class
        )
        self._index_keys = gauge("prefix_index_keys", "Keys in the prefix index.")
        self._index_bytes = gauge("prefix_index_bytes", "Most that the prefix index takes.")

    def update(self, dispatchers: Mapping[str, Dispatcher]) -> None:
        """Show them as they are now."""
        self._credits.clear()
        for model, dispatcher in dispatchers.items():
            members = list(dispatcher.fleet)
            self._waiting.labels(model).set(dispatcher.num_waiting)
            self._running.labels(model).set(dispatcher.num_running)
            self._engines.labels(model).set(sum(member.is_accepting for member in members))
            states = [_state(member) for member in members]
            for state in _STATES:
                self._rungs.labels(model, state).set(states.count(state))
            num_seeded = dispatcher.seeder.num_seeded
            self._seeded.labels(model).inc(num_seeded - self._num_seeded.get(model, 0))
            self._num_seeded[model] = num_seeded
            self._index_keys.labels(model).set(len(dispatcher.fleet.index))
            self._index_bytes.labels(model).set(dispatcher.fleet.index.num_bytes)
            for service_class, queue in zip(ServiceClass, dispatcher.queues(), strict=True):
                labels = (model, service_class.name.lower())
                self._depth.labels(*labels).set(queue.depth)
                self._oldest_age.labels(*labels).set(queue.oldest_age_s)
                self._estimated_wait.labels(*labels).set(queue.estimated_wait_s)
            for member in members:
                self._credits.labels(model, member.engine_id).set(member.client.num_credits)


def _state(member: Member) -> str:
    state = member.client.rung_state
    if member.is_leaving:
        return "draining"
    if state.is_moving:
        return "moving"
    return "serving" if state.rung is Rung.SERVING else "parked"
