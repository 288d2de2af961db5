"""Benchmark of limits that follow load: ``python -m benchmarks.limits --out FILE``.

A paced engine under twice the load that it can bear, in virtual time (`benchmarks.limits_run`):
with the configured maximum, with each static pair of limits of a sweep, and with a target for the
time per output token. The peer of the adaptive run is the static pair with the most tok/s among
those that hold the target. ``shift`` goes from little load to the same rate of prompts five times
as long, half way.

``stretch_*``: 16 streams decode, and a prompt of 6,000 tokens comes: the 99th percentile of the
steps meanwhile over that of the other steps, and the prompt's speed over its speed alone; without
noise.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from benchmarks.limits_run import SMALL_CPU, Ask, LoadOutcome, VirtualEngine, chat_asks
from benchmarks.result import BenchmarkResult, CaseResult, ResultError, paired_ratio
from benchmarks.statistics import percentile
from engine.config import EngineConfig

_OVERLOAD = 2.0
_NUM_CAPACITY_ASKS = 300
_STATIC_SEQS = (16, 32, 64)
_STATIC_TOKENS = (48, 64, 80, 96, 128, 192, 256)
_STRETCHES = (1.5, 2.0, 3.0, 5.0, None)
_LEAST_SHARE = 0.9
_NUM_STREAMS, _STREAM_CONTEXT, _LONG_PROMPT = 16, 128, 6000
_LOAD_BEFORE_SHIFT, _SHIFT_SCALE = 0.6, 5.0
_NUM_RUNS = 5


@dataclass(frozen=True, slots=True)
class Runs:
    """The runs of one seed."""

    fixed: LoadOutcome
    default: LoadOutcome
    adaptive: LoadOutcome
    best_static: LoadOutcome
    """Of those that hold the target; of all, if none does."""
    best_static_name: str


def make_config(
    *,
    target_s: float | None = None,
    max_step_stretch: float | None = None,
    max_num_seqs: int = 64,
    max_num_batched_tokens: int = 512,
) -> EngineConfig:
    """Of a paced engine."""
    return EngineConfig(
        runner="paced",
        paced=SMALL_CPU,
        prefix_caching=False,
        tpot_target_s=target_s,
        max_step_stretch=max_step_stretch,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )


def capacity_per_s(seed: int) -> float:
    """Requests that the configured maximum answers in a second when they never dry up."""
    asks = chat_asks(_NUM_CAPACITY_ASKS, rate_per_s=1e6, seed=seed)
    return len(asks) / VirtualEngine(make_config(), seed=seed).run(asks).duration_s


def overload_asks(rate_per_s: float, duration_s: float, *, seed: int) -> list[Ask]:
    return chat_asks(round(rate_per_s * duration_s), rate_per_s=rate_per_s, seed=seed)


def shifting_asks(rate_per_s: float, duration_s: float, *, seed: int) -> list[Ask]:
    """No queue in the first half; in the second too many requests, and of longer prompts."""
    half_s = duration_s / 2
    early = overload_asks(rate_per_s * _LOAD_BEFORE_SHIFT / _OVERLOAD, half_s, seed=seed)
    num_late = round(rate_per_s * half_s)
    late = chat_asks(num_late, rate_per_s=rate_per_s, seed=seed + 1, scale=_SHIFT_SCALE)
    return [*early, *(replace(ask, arrival_s=ask.arrival_s + half_s) for ask in late)]


def measure_runs(asks: Sequence[Ask], duration_s: float, target_s: float, *, seed: int) -> Runs:
    """All ways to limit, for the same requests."""

    def run(config: EngineConfig) -> LoadOutcome:
        return VirtualEngine(config, seed=seed).run(asks, until_s=duration_s)

    static = {
        f"{num_seqs}x{num_tokens}": run(
            make_config(max_num_seqs=num_seqs, max_num_batched_tokens=num_tokens)
        )
        for num_seqs, num_tokens in product(_STATIC_SEQS, _STATIC_TOKENS)
    }
    holding = {name: run for name, run in static.items() if run.tpot_p99_s <= target_s} or static
    best = max(holding, key=lambda name: holding[name].tokens_per_s)
    return Runs(
        fixed=run(make_config()),
        default=run(make_config(max_step_stretch=2.0)),
        adaptive=run(make_config(target_s=target_s)),
        best_static=static[best],
        best_static_name=best,
    )


def load_cases(runs: Sequence[Runs], target_s: float) -> Iterator[CaseResult]:
    """Over all seeds: the worst for promises, the mean for throughput."""
    target_ms = 1e3 * target_s
    for name in ("fixed", "default", "adaptive", "best_static"):
        outcomes: list[LoadOutcome] = [getattr(run, name) for run in runs]
        worst_ms = 1e3 * max(outcome.tpot_p99_s for outcome in outcomes)
        yield CaseResult(case=f"{name}_tpot_p99", value=worst_ms, unit="ms", limit=target_ms)
    for name in ("fixed", "default"):
        outcomes = [getattr(run, name) for run in runs]
        yield CaseResult(case=f"{name}_speed", value=_mean_speed(outcomes), unit="tok/s")
    adaptive = [run.adaptive for run in runs]
    best = [run.best_static for run in runs]
    yield CaseResult(
        case="adaptive_speed",
        value=_mean_speed(adaptive),
        unit="tok/s",
        peer=f"best static limits ({', '.join(sorted({run.best_static_name for run in runs}))})",
        peer_value=_mean_speed(best),
        ratio=paired_ratio(
            [outcome.tokens_per_s for outcome in adaptive],
            [outcome.tokens_per_s for outcome in best],
        ),
        limit=_LEAST_SHARE * _mean_speed(best),
    )
    yield CaseResult(
        case="adaptive_reversals",
        value=max(outcome.most_reversals for outcome in adaptive),
        unit="per 10 s",
        limit=1.0,
    )


def shift_cases(
    rate_per_s: float, duration_s: float, target_s: float, *, seed: int
) -> Iterator[CaseResult]:
    """Fixed and adaptive when prompts become longer."""
    asks = shifting_asks(rate_per_s, duration_s, seed=seed)
    for name, config in (
        ("fixed", make_config()),
        ("adaptive", make_config(target_s=target_s)),
    ):
        outcome = VirtualEngine(config, seed=seed).run(asks, until_s=duration_s)
        tpot_ms = 1e3 * outcome.tpot_p99_s
        case = f"shift_{name}"
        yield CaseResult(case=f"{case}_tpot_p99", value=tpot_ms, unit="ms", limit=1e3 * target_s)
        yield CaseResult(case=f"{case}_speed", value=outcome.tokens_per_s, unit="tok/s")
        reversals = outcome.most_reversals
        yield CaseResult(case=f"{case}_reversals", value=reversals, unit="per 10 s", limit=1.0)


def stretch_cases(*, seed: int) -> Iterator[CaseResult]:
    """What a long prompt and the streams beside it cost each other."""
    alone = VirtualEngine(make_config(), seed=seed, is_noisy=False).run([Ask(0.0, _LONG_PROMPT, 2)])
    streams = [Ask(0.0, _STREAM_CONTEXT, 1500)] * _NUM_STREAMS
    for stretch in _STRETCHES:
        engine = VirtualEngine(make_config(max_step_stretch=stretch), seed=seed, is_noisy=False)
        outcome = engine.run([*streams, Ask(4.0, _LONG_PROMPT, 2)])
        all_decode = [r for r in outcome.records if r.num_decodes == _NUM_STREAMS]
        beside_s = [r.step_time_s for r in all_decode if r.num_prefill_tokens > 0]
        alone_s = [r.step_time_s for r in all_decode if r.num_prefill_tokens == 0]
        name = "none" if stretch is None else f"{stretch:g}"
        gap = percentile(beside_s, 99.0) / percentile(alone_s, 99.0)
        share = alone.ttfts_s["0"] / outcome.ttfts_s[f"{_NUM_STREAMS}"]
        yield CaseResult(case=f"stretch_{name}_gap", value=gap, unit="x")
        yield CaseResult(case=f"stretch_{name}_prefill", value=share, unit="of its speed alone")


def _mean_speed(outcomes: Sequence[LoadOutcome]) -> float:
    return sum(outcome.tokens_per_s for outcome in outcomes) / len(outcomes)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(sys.argv[1:] if argv is None else argv)
    target_s = options.target_ms / 1e3
    seeds = range(options.seed, options.seed + _NUM_RUNS)
    rate_per_s = _OVERLOAD * capacity_per_s(options.seed)
    try:
        runs = []
        for seed in seeds:
            asks = overload_asks(rate_per_s, options.duration_s, seed=seed)
            runs.append(measure_runs(asks, options.duration_s, target_s, seed=seed))
        results = [
            *load_cases(runs, target_s),
            *shift_cases(rate_per_s, 2 * options.duration_s, target_s, seed=options.seed),
            *stretch_cases(seed=options.seed),
        ]
        for case in results:
            print(f"{case.case:28} {case.value:10.2f} {case.unit}")
        BenchmarkResult.of_this_machine(
            name="limits",
            config={
                "target_ms": options.target_ms,
                "duration_s": options.duration_s,
                "rate_per_s": rate_per_s,
                "paced": SMALL_CPU.model_dump(mode="json"),
            },
            seed=options.seed,
            results=results,
        ).write(options.out)
    except (ResultError, OSError) as error:
        print(f"benchmarks.limits: {error}", file=sys.stderr)
        return 1
    return 0


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.limits", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--target-ms", type=float, default=40.0, help="per output token")
    parser.add_argument("--duration-s", type=float, default=30.0, help="of a run, in virtual time")
    parser.add_argument("--seed", type=int, default=0, help="of arrivals, lengths and noise")
    options = parser.parse_args(argv)
    if options.target_ms <= 0 or options.duration_s <= 0:
        parser.error("--target-ms and --duration-s must be above 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
