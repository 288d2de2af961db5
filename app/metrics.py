"""The gateway's Prometheus metrics, in a registry of their own: numbers, never contents."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from app.dispatch import Dispatcher
from app.record import RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# vLLM's names (with its prefix replaced) and bounds, so that dashboards made for it fit.
_TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TPOT_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_REQUEST_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Metrics:
    """Everything ``/metrics`` shows."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        by_model = ["model_name"]
        self._requests = Counter(
            "headwater:http_requests",
            "Requests that ended, by status; 499 is a client that went away.",
            ["route", "model_name", "status"],
            registry=registry,
        )
        self._ttft = Histogram(
            "headwater:time_to_first_token_seconds",
            "From the request's arrival to its first token.",
            by_model,
            buckets=_TTFT_BUCKETS_S,
            registry=registry,
        )
        self._tpot = Histogram(
            "headwater:request_time_per_output_token_seconds",
            "Mean of one request, after its first token.",
            by_model,
            buckets=_TPOT_BUCKETS_S,
            registry=registry,
        )
        self._queue_wait = Histogram(
            "headwater:request_queue_time_seconds",
            "From a request's queueing to its submission to an engine.",
            by_model,
            buckets=_REQUEST_BUCKETS_S,
            registry=registry,
        )
        self._tokens = Counter(
            "headwater:tokens",
            "Tokens of requests that an engine took; cached ones are a part of the prompt's.",
            ["model_name", "kind"],
            registry=registry,
        )
        self._waiting = Gauge(
            "headwater:gateway_requests_waiting",
            "Waiting for an engine.",
            by_model,
            registry=registry,
        )
        self._running = Gauge(
            "headwater:gateway_requests_running",
            "Submitted to an engine.",
            by_model,
            registry=registry,
        )
        self._engines = Gauge(
            "headwater:engines_accepting",
            "Connected engines that take requests.",
            by_model,
            registry=registry,
        )
        self._credits = Gauge(
            "headwater:engine_credits",
            "Requests that the engine would take now.",
            ["model_name", "engine"],
            registry=registry,
        )
        self._index_keys = Gauge(
            "headwater:prefix_index_keys", "Keys in the prefix index.", by_model, registry=registry
        )

    def count(self, record: RequestRecord) -> None:
        """Add a request that ended."""
        model = record.model or ""
        self._requests.labels(record.route, model, str(record.status)).inc()
        if record.model is None:
            return
        if record.queue_wait_s is not None:
            self._queue_wait.labels(model).observe(record.queue_wait_s)
        if record.ttft_s is not None:
            self._ttft.labels(model).observe(record.ttft_s)
        tpot_s = record.tpot_s
        if tpot_s is not None:
            self._tpot.labels(model).observe(tpot_s)
        if record.num_attempts == 0:
            return  # no engine took it
        self._tokens.labels(model, "prompt").inc(record.num_prompt_tokens)
        self._tokens.labels(model, "cached").inc(record.num_cached_tokens)
        self._tokens.labels(model, "completion").inc(record.num_completion_tokens)

    def render(self, dispatchers: Mapping[str, Dispatcher]) -> bytes:
        """The text of ``/metrics``, with the gauges as they are now."""
        self._credits.clear()
        for model, dispatcher in dispatchers.items():
            self._waiting.labels(model).set(dispatcher.num_waiting)
            self._running.labels(model).set(dispatcher.num_running)
            members = list(dispatcher.fleet)
            num_accepting = sum(member.is_accepting for member in members)
            self._engines.labels(model).set(num_accepting)
            self._index_keys.labels(model).set(len(dispatcher.fleet.index))
            for member in members:
                self._credits.labels(model, member.engine_id).set(member.client.num_credits)
        return generate_latest(self._registry)
