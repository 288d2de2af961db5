"""The engine's Prometheus metrics: names and buckets like vLLM's, with a prefix of our own.

Numbers only; labels are the model's name and the engine's id, never anything of a request. Totals
are read at the scrape, so that a step only adds to histograms. Must not know HTTP.
"""

import time
from collections.abc import Iterable, Sequence
from typing import get_args

import psutil
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from cache_tiers.rung import Rung
from engine.config import EngineSpec
from engine.messages import LoadView
from engine.observations import EngineStats, LimitReason, StepRecord
from engine.rank_group import RankGroup
from engine.rank_messages import Ready, StepReport
from engine.rung_keeper import RungKeeper
from engine.rung_metrics import collect_rung
from engine.start_metrics import collect_start
from engine.start_stages import ReplicaStart
from engine.step_ring import StepRing
from engine.tier_metrics import collect_tiers
from engine.timelines import Timeline

PREFIX = "headwater:"
_LATENCY_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_ITERATION_BUCKETS_TOKENS = (1, *(2**power for power in range(3, 15)))
_STEP_BUCKETS_S = (
    *(0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2),
    *(0.3, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_NUM_SAMPLES_BUCKETS = (1, 2, 5, 10, 20)
_PREEMPTION_BUCKETS = (1, 2, 3, 4, 5, 10, 20)


def token_buckets(max_tokens: int) -> list[int]:
    """1, 2, 5, 10, … up to ``max_tokens``."""
    scales = [10**power for power in range(len(str(max_tokens)))]
    return [d * scale for scale in scales for d in (1, 2, 5) if d * scale <= max_tokens]


class EngineMetrics:
    """Owner of one engine's registry."""

    def __init__(
        self,
        spec: EngineSpec,
        ready: Ready,
        start: ReplicaStart,
        *,
        engine_id: str,
        steps: StepRing,
        ranks: RankGroup,
        rung: RungKeeper,
    ) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"model_name": spec.model, "engine": engine_id}
        self._now = _Now(spec, ready, start, list(self._labels.values()), steps, ranks, rung)
        self._registry.register(self._now)
        tokens = token_buckets(ready.max_model_len)
        times = _LATENCY_BUCKETS_S
        add = self._histogram
        self._step_time = add("step_time_seconds", "Time of one step.", _STEP_BUCKETS_S)
        self._iteration = add(
            "iteration_tokens_total", "Tokens per engine step.", _ITERATION_BUCKETS_TOKENS
        )
        self._queue = add("request_queue_time_seconds", "From taken to admitted.", times)
        self._prefill = add("request_prefill_time_seconds", "From admitted to first token.", times)
        self._decode = add("request_decode_time_seconds", "From first to last token.", times)
        self._inference = add("request_inference_time_seconds", "From admitted to the end.", times)
        self._prompt = add("request_prompt_tokens", "Prompt tokens of a request.", tokens)
        self._generated = add(
            "request_generation_tokens", "Generated tokens of a request, all samples.", tokens
        )
        self._computed = add(
            "request_prefill_kv_computed_tokens", "Prefilled, without cached ones.", tokens
        )
        self._max_tokens = add("request_params_max_tokens", "The max_tokens in force.", tokens)
        self._num_samples = add("request_params_n", "Samples of a request.", _NUM_SAMPLES_BUCKETS)
        self._preemptions = add(
            "request_num_preemptions", "How often a request gave way.", _PREEMPTION_BUCKETS
        )

    def record(self, report: StepReport, finished: Sequence[Timeline]) -> None:
        """After each step; ``finished``: the requests that ended with it."""
        self._now.load = report.load
        self._now.stats = report.stats
        record = report.record
        if record is not None:
            self._now.last = record
            self._step_time.observe(record.step_time_s)
            self._iteration.observe(record.num_prefill_tokens + record.num_decodes)
        for timeline in finished:
            self._record_request(timeline)

    def render(self) -> bytes:
        """The text of a scrape."""
        return generate_latest(self._registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(
            PREFIX + name, text, list(self._labels), buckets=buckets, registry=self._registry
        )
        return family.labels(**self._labels)

    def _record_request(self, timeline: Timeline) -> None:
        admitted_s, last_s = timeline.admitted_s, timeline.last_token_s
        first_s = timeline.first_token_s
        self._prompt.observe(timeline.num_prompt_tokens)
        self._generated.observe(timeline.num_generated_tokens)
        self._num_samples.observe(timeline.num_samples)
        self._max_tokens.observe(timeline.sampling["max_tokens"] or 0)
        self._preemptions.observe(timeline.num_preemptions)
        if admitted_s is None or timeline.taken_s is None or last_s is None:
            return
        self._computed.observe(timeline.num_computed_tokens)
        self._queue.observe(admitted_s - timeline.taken_s)
        self._inference.observe(last_s - admitted_s)
        if first_s is not None:
            self._prefill.observe(first_s - admitted_s)
            self._decode.observe(last_s - first_s)


class _Now(Collector):
    """Totals and gauges, made at the scrape."""

    def __init__(
        self,
        spec: EngineSpec,
        ready: Ready,
        start: ReplicaStart,
        labels: list[str],
        steps: StepRing,
        ranks: RankGroup,
        rung: RungKeeper,
    ) -> None:
        self.load: LoadView = ready.load
        self.stats = EngineStats()
        self.last: StepRecord | None = None
        self._spec = spec
        self._start = start
        self._memory = ready.memory
        self._labels = labels
        self._steps = steps
        self._ranks = ranks
        self._rung = rung

    def collect(self) -> Iterable[Metric]:
        load, stats = self.load, self.stats
        config, last = self._spec.config, self.last
        has_pool = self._rung.state.rung is Rung.SERVING
        num_used = load.num_blocks - load.num_free_blocks if has_pool else 0
        gauge, counter = self._gauge, self._counter
        yield gauge("num_requests_running", "Sequences that run.", load.num_running)
        yield gauge("num_requests_waiting", "Sequences that wait inside.", load.num_waiting)
        usage = num_used / load.num_blocks if load.num_blocks else 0.0
        yield gauge("kv_cache_usage_perc", "1 is all KV blocks in use.", usage)
        yield counter(
            "prefix_cache_queries",
            "Prompt tokens looked up, seeds included.",
            load.num_prompt_tokens,
        )
        hits = load.num_cached_prompt_tokens
        yield counter("prefix_cache_hits", "Prompt tokens found.", hits)
        yield counter("num_preemptions", "Sequences that gave way.", load.num_preemptions)
        prefilled = stats.num_computed_prompt_tokens
        yield counter("prompt_tokens", "Tokens prefilled.", prefilled)
        recomputed = stats.num_recomputed_tokens
        yield counter("prompt_tokens_recomputed", "Prefilled again.", recomputed)
        yield counter("prompt_tokens_cached", "Prompt tokens not computed.", hits)
        yield counter("generation_tokens", "Tokens generated.", load.num_generated_tokens)
        yield counter("steps", "Steps carried out.", stats.num_steps)
        yield counter("step_busy_seconds", "Wall time in steps.", stats.busy_time_s)
        share = self._steps.busy_share(time.monotonic())
        yield gauge("step_busy_ratio", "Share of the last 10 s spent in steps.", share)
        yield counter("failed_steps", "Steps that failed.", stats.num_failed_steps)
        oom = stats.num_out_of_memory_steps
        yield counter("out_of_memory_steps", "Steps without enough memory.", oom)
        yield counter("kv_blocks_leaked", "Found unowned, repaired.", stats.num_leaked_blocks)
        yield counter("gc_pauses", "Collections of garbage.", stats.num_gc_pauses)
        yield counter("gc_pause_seconds", "Wall time in them.", stats.gc_pause_s)
        longest_s = stats.longest_gc_pause_s
        yield gauge("gc_longest_pause_seconds", "The longest of them.", longest_s)
        max_tokens = config.max_num_batched_tokens if last is None else last.max_tokens
        yield gauge("step_token_budget", "Tokens of one step, in force.", max_tokens)
        max_seqs = config.max_num_seqs if last is None else last.max_seqs
        yield gauge("max_running_sequences", "Sequences that may run, in force.", max_seqs)
        if last is not None and last.max_context_tokens is not None:
            most = last.max_context_tokens
            yield gauge("max_context_tokens", "Of all that run, in force.", most)
        yield self._limit_reason("configured" if last is None else last.limit_reason)
        efficiency = stats.batch_efficiency
        yield gauge("batch_efficiency", "Needed tokens over computed ones, lately.", efficiency)
        if self._ranks.is_running:
            silence_s = self._ranks.silence_s
            yield gauge("rank_heartbeat_age_seconds", "Of the most silent rank.", silence_s)
        yield counter("requests_moved", "Samples handed to other replicas.", stats.num_moved)
        yield from collect_rung(self._rung, self._labels)
        yield from collect_start(self._start, self._labels)
        yield from self._collect_memory(num_used, has_pool=has_pool)
        if stats.tiers is not None:
            yield from collect_tiers(stats.tiers, self._labels)

    def _collect_memory(self, num_used_blocks: int, *, has_pool: bool) -> Iterable[Metric]:
        memory, size = self._memory, self._spec.config.tensor_parallel_size
        if memory is None:
            return
        used = num_used_blocks * memory.kv_block
        theoretical = self.stats.num_kv_tokens * memory.kv_token
        yield self._gauge("kv_actual_bytes", "Of the blocks in use, all ranks.", used * size)
        yield self._gauge(
            "kv_theoretical_bytes", "Of the tokens held alone, all ranks.", theoretical * size
        )
        kv_pool = memory.kv_pool if has_pool else 0
        known = memory.weights + memory.workspace + kv_pool
        kinds = {
            "weights": memory.weights * size,
            "workspace": memory.workspace * size,
            "kv_pool": kv_pool * size,
            "kv_used": used * size,
        }
        resident = self._resident_bytes()
        # On an accelerator the other kinds lie on the device, and this is the host's memory.
        on_host = known * size if self._spec.config.device == "cpu" else 0
        kinds["other"] = max(0, resident - on_host)
        family = GaugeMetricFamily(
            f"{PREFIX}memory_bytes",
            "All ranks; kv_used is a part of kv_pool; other: resident host memory beyond the rest.",
            labels=["model_name", "engine", "kind"],
        )
        for kind, num_bytes in kinds.items():
            family.add_metric([*self._labels, kind], num_bytes)
        yield family

    def _limit_reason(self, reason: LimitReason) -> Metric:
        family = GaugeMetricFamily(
            f"{PREFIX}step_limit_reason",
            "1 for what holds the limits of a step where they are.",
            labels=["model_name", "engine", "reason"],
        )
        for name in get_args(LimitReason):
            family.add_metric([*self._labels, name], name == reason)
        return family

    def _resident_bytes(self) -> int:
        total = 0
        for pid in self._ranks.pids:
            try:
                total += psutil.Process(pid).memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return total

    def _gauge(self, name: str, text: str, value: float) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["model_name", "engine"])
        family.add_metric(self._labels, value)
        return family

    def _counter(self, name: str, text: str, value: float) -> Metric:
        family = CounterMetricFamily(PREFIX + name, text, labels=["model_name", "engine"])
        family.add_metric(self._labels, value)
        return family
