"""What a decode step of our engine is made of, and how alike its steps are.

``python_per_step``: a step's time outside of the model's layers and logits: planning, results,
draws, commit. ``step_jitter``: the times of many steps at one batch size; sequences start over
at the same context again and again, so that all steps do the same work.
"""

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

from benchmarks.engine_cases import decode_case
from benchmarks.engine_driver import OwnEngine
from benchmarks.result import CaseResult
from benchmarks.statistics import percentile
from engine.errors import EngineError

HOST_BATCHES = (16, 64)
JITTER_BATCH = 16
_MAX_HOST_MS = 1.0
_MAX_JITTER = 1.5
_NUM_HOST_STEPS = 32
_ROUND_STEPS = 64
_NUM_SETTLING_STEPS = 2
"""After the last prefill, before steps count."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Stopwatch:
    """Time spent in the calls that it wraps."""

    total_s: float = 0.0

    def wrap(self, call: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(call)
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            started_s = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.total_s += time.perf_counter() - started_s

        return timed


def measure_host_time(own: OwnEngine) -> list[CaseResult]:
    """Median over the decode steps of each batch size, in milliseconds."""
    model_time = _watch_model(own)
    rows = []
    for num_seqs in HOST_BATCHES:
        host_times_ms: list[float] = []

        def count(step_s: float, model_s: float, times: list[float] = host_times_ms) -> None:
            times.append((step_s - model_s) * 1000)

        _decode(own, num_seqs, _NUM_HOST_STEPS, count, model_time)
        host_ms = percentile(host_times_ms, 50.0)
        rows.append(
            CaseResult(
                case=f"python_per_step_bs{num_seqs}", value=host_ms, unit="ms", limit=_MAX_HOST_MS
            )
        )
        print(f"python_per_step, batch {num_seqs}: {host_ms:.2f} ms", flush=True)
    return rows


def measure_jitter(own: OwnEngine, num_steps: int) -> list[CaseResult]:
    """Percentiles over ``num_steps`` decode steps, and the last over the first."""
    times_ms: list[float] = []
    while len(times_ms) < num_steps:
        num_left = num_steps - len(times_ms)
        _decode(
            own,
            JITTER_BATCH,
            min(_ROUND_STEPS, num_left),
            lambda step_s, _: times_ms.append(step_s * 1000),
            Stopwatch(),
        )
    return summarize_jitter(times_ms)


def summarize_jitter(times_ms: list[float]) -> list[CaseResult]:
    """p50, p99, p99.9 and the longest; the ratio's limit is what the project promises."""
    ranks = {"p50": 50.0, "p99": 99.0, "p99_9": 99.9, "max": 100.0}
    figures = {name: percentile(times_ms, rank) for name, rank in ranks.items()}
    ratio = figures["p99_9"] / figures["p50"]
    listed = ", ".join(f"{name} {figure:.2f} ms" for name, figure in figures.items())
    print(f"step_jitter, {len(times_ms)} steps: {listed}, p99.9 / p50 {ratio:.2f}", flush=True)
    rows = [
        CaseResult(case=f"step_jitter_{name}", value=figure, unit="ms")
        for name, figure in figures.items()
    ]
    rows.append(CaseResult(case="step_jitter", value=ratio, unit="p99.9/p50", limit=_MAX_JITTER))
    return rows


def _decode(
    own: OwnEngine,
    num_seqs: int,
    num_steps: int,
    count: Callable[[float, float], None],
    model_time: Stopwatch,
) -> None:
    """Tell ``count`` the time of each step of a decode at context 128, and the model's in it."""
    # All rounds begin at the same context, also a shorter last one.
    case = decode_case("steps", num_seqs, _ROUND_STEPS)
    request_ids = [f"steps-{index}" for index in range(num_seqs)]
    for request_id in request_ids:
        own.driver.add(request_id, own.prompts.draw(case.prompt_len), case.max_tokens)
    waiting = set(request_ids)
    while waiting:
        waiting -= set(own.driver.step())
    for _ in range(_NUM_SETTLING_STEPS):
        own.driver.step()
    for _ in range(num_steps):
        model_before_s = model_time.total_s
        started_s = time.perf_counter()
        num_new = own.driver.step()
        step_s = time.perf_counter() - started_s
        if len(num_new) != num_seqs:
            raise EngineError(f"a step gave tokens to {len(num_new)} of {num_seqs} sequences")
        count(step_s, model_time.total_s - model_before_s)
    own.driver.abort(request_ids)


def _watch_model(own: OwnEngine) -> Stopwatch:
    """Wraps the calls that compute with weights, for the rest of the engine's life: ``pick``
    computes logits and finds the likeliest among them meanwhile.
    """
    watch = Stopwatch()
    # Only this benchmark asks where the runner's time goes.
    runner = cast(Any, own.loaded.runner)
    model, head = runner._model, runner._outputs._head  # noqa: SLF001
    for owner, name in ((model, "forward"), (head, "logits"), (head, "pick")):
        setattr(owner, name, watch.wrap(getattr(owner, name)))
    return watch
