"""The gateway's Prometheus metrics, in a registry of their own: numbers, never contents.

What engines know better (tokens per request, sampling parameters) is on their pages, so that a
merged page counts it once. Labels come from configuration and from this code, never from clients.
"""

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from app.bucket_counts import BucketCounts, BucketCountsByModel
from app.dispatch import Dispatcher
from app.dispatch_gauges import DispatchGauges
from app.record import RequestRecord

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_PREFIX = "headwater:"

# vLLM's names (with its prefix replaced) and bounds, so that dashboards made for it fit.
_TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_TOKEN_GAP_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_REQUEST_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)

_TOKENIZING_BUCKETS_S = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
    *(2.5, 5.0),
)
_TRANSFER_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_RATIO_BUCKETS = (0.1, 0.25, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0, 10.0)

_CLIENT_GONE_STATUS = 499


class Metrics:
    """Everything that ``/metrics`` of one gateway shows."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._add_latencies()
        self._add_counters()
        self._gauges = DispatchGauges(self._registry)

    def gaps_of(self, model: str) -> BucketCounts:
        """Takes the times between the writes of a stream, while it lasts.

        Precondition: ``model`` is a configured name.
        """
        return self._gaps.of(model)

    def count(self, record: RequestRecord) -> None:
        """Add a request that ended."""
        model = record.model or ""
        self._requests.labels(record.route, model, str(record.status)).inc()
        if record.model is None:
            return
        for histogram, time_s in (
            (self._tokenizing, record.tokenizing_s),
            (self._queue_wait, record.queue_wait_s),
            (self._ttft, record.ttft_s),
            (self._tpot, record.tpot_s),
        ):
            if time_s is not None:
                histogram.labels(model).observe(time_s)
        if record.num_attempts == 0:
            return  # no engine took it
        self._e2e.labels(model).observe(record.elapsed_s)
        self._success.labels(model, _finished_reason(record)).inc()
        self._submissions.labels(model).inc(record.num_submissions)
        self._retries.labels(model).inc(record.num_retries)
        self._moves.labels(model).inc(record.num_moves)
        self._tokens.labels(model, "prompt").inc(record.num_prompt_tokens)
        self._tokens.labels(model, "cached").inc(record.num_cached_tokens)
        self._tokens.labels(model, "completion").inc(record.num_completion_tokens)
        self._count_predictions(record, model)
        self._count_transfers(record, model)

    def render(self, dispatchers: Mapping[str, Dispatcher]) -> bytes:
        """The text of ``/metrics``, with the gauges as they are now."""
        self._gauges.update(dispatchers)
        return generate_latest(self._registry)

    def _add_latencies(self) -> None:
        self._gaps = BucketCountsByModel(
            f"{_PREFIX}inter_token_latency_seconds",
            "Between two writes to the client's socket that brought tokens of one sample.",
            _TOKEN_GAP_BUCKETS_S,
        )
        self._registry.register(self._gaps)
        self._ttft = self._histogram(
            "time_to_first_token_seconds",
            "From the request's arrival to its first token, at the client's socket if streamed.",
            _TTFT_BUCKETS_S,
        )
        self._tpot = self._histogram(
            "request_time_per_output_token_seconds",
            "Mean of one request, after its first token.",
            _TOKEN_GAP_BUCKETS_S,
        )
        self._e2e = self._histogram(
            "e2e_request_latency_seconds",
            "From the request's arrival to its end, if an engine took it.",
            _REQUEST_BUCKETS_S,
        )
        self._queue_wait = self._histogram(
            "gateway_queue_time_seconds",
            "From a request's queueing in the gateway to its submission to an engine.",
            _REQUEST_BUCKETS_S,
        )
        self._tokenizing = self._histogram(
            "tokenizing_time_seconds", "Spent on a request's prompts.", _TOKENIZING_BUCKETS_S
        )
        self._ttft_ratio = self._histogram(
            "first_token_time_ratio",
            "Actual over predicted time from the submission to the first token.",
            _RATIO_BUCKETS,
        )

    def _add_counters(self) -> None:
        self._requests = self._counter(
            "http_requests",
            "Requests that ended, by status; 499 is a client that went away.",
            ["route", "model_name", "status"],
        )
        self._success = self._counter(
            "request_success",
            "Requests that an engine took, by how they ended: stop, length, abort or error.",
            ["model_name", "finished_reason"],
        )
        self._tokens = self._counter(
            "tokens",
            "Tokens of requests that an engine took; cached ones are a part of the prompt's.",
            ["model_name", "kind"],
        )
        self._submissions = self._counter("engine_submissions", "Prompts sent to engines.")
        self._retries = self._counter(
            "engine_retries",
            "Prompts sent once more as their engine was lost, begun answers included.",
        )
        self._moves = self._counter(
            "requests_moved",
            "Prompts that went on at another engine as theirs left or went to sleep.",
        )
        self._predicted_tokens = self._counter(
            "prefix_predicted_tokens",
            "Prompt tokens that the prefix index expected in the caches of the engines chosen.",
        )
        self._cached_tokens = self._counter(
            "prefix_cached_tokens", "Prompt tokens that those engines then found there."
        )
        self._predicted_s = self._counter(
            "first_token_predicted_seconds",
            "Sum of the times from submission to first token that the router expected.",
        )
        self._actual_s = self._counter(
            "first_token_actual_seconds", "Sum of the times that the same requests then took."
        )
        self._add_transfers()

    def _add_transfers(self) -> None:
        by_source = ["model_name", "source"]
        self._restored = self._counter(
            "restored_tokens",
            "Cached prompt tokens that came from outside of the accelerator, by where they lay.",
            ["model_name", "medium"],
        )
        self._missed_transfers = self._counter(
            "transfers_missed", "Loads that the router expected and that did not come.", by_source
        )
        self._predicted_transfer = Histogram(
            f"{_PREFIX}transfer_predicted_seconds",
            "What the router expected of loads that came, from the source it expected.",
            by_source,
            buckets=_TRANSFER_BUCKETS_S,
            registry=self._registry,
        )
        self._actual_transfer = Histogram(
            f"{_PREFIX}transfer_actual_seconds",
            "What the same loads then took.",
            by_source,
            buckets=_TRANSFER_BUCKETS_S,
            registry=self._registry,
        )
        self._transfer_ratio = Histogram(
            f"{_PREFIX}transfer_seconds_ratio",
            "Actual over predicted seconds of the same loads.",
            by_source,
            buckets=_RATIO_BUCKETS,
            registry=self._registry,
        )

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(
            _PREFIX + name, text, ["model_name"], buckets=buckets, registry=self._registry
        )

    def _counter(self, name: str, text: str, labels: Sequence[str] = ("model_name",)) -> Counter:
        return Counter(_PREFIX + name, text, labels, registry=self._registry)

    def _count_predictions(self, record: RequestRecord, model: str) -> None:
        predicted, actual = record.predicted, record.actual
        self._predicted_tokens.labels(model).inc(predicted.cached_tokens)
        self._cached_tokens.labels(model).inc(actual.cached_tokens)
        self._predicted_s.labels(model).inc(predicted.first_token_s)
        self._actual_s.labels(model).inc(actual.first_token_s)
        if predicted.first_token_s > 0:
            ratio = actual.first_token_s / predicted.first_token_s
            self._ttft_ratio.labels(model).observe(ratio)

    def _count_transfers(self, record: RequestRecord, model: str) -> None:
        for medium, num_tokens in record.restored.items():
            self._restored.labels(model, medium).inc(num_tokens)
        for expected, actual in record.transfers:
            labels = (model, expected.kind.value)
            if actual is None or actual.kind is not expected.kind:
                self._missed_transfers.labels(*labels).inc()
                continue
            self._predicted_transfer.labels(*labels).observe(expected.time_s)
            self._actual_transfer.labels(*labels).observe(actual.time_s)
            if expected.time_s > 0:
                self._transfer_ratio.labels(*labels).observe(actual.time_s / expected.time_s)


def _finished_reason(record: RequestRecord) -> str:
    if record.status == _CLIENT_GONE_STATUS:
        return "abort"
    if record.error is not None or record.finish_reason is None:
        return "error"
    return "length" if "length" in record.finish_reason else "stop"
