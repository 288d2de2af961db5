"""Benchmark of the autoscaler on virtual clocks: ``HEADWATER_TRACES=DIR python -m
benchmarks.autoscaling --out FILE``.

- ``rates``: days of request rates on a fleet of numbers, ours beside published policies and who
  knows the future (`benchmarks.autoscaling_rates`).
- ``day``: the design case over a day, request by request (`benchmarks.autoscaling_day`).
- ``windows``: the day's simulation beside the whole simulator; ``--window-rps 5000`` is the design
  case's full size, which takes hours and many GiB.
- ``hits``: nodes and price at several shares of cached prompt tokens.

``--short`` makes up a trace of its own and simulates minutes: whether everything runs.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from benchmarks.autoscaling_day import (
    LEAD_S,
    Capacity,
    DayPlan,
    calibrate,
    day_spec,
    typical_day,
)
from benchmarks.autoscaling_day_cases import measure_day
from benchmarks.autoscaling_hits import hit_cases, measure_hits
from benchmarks.autoscaling_rates import measure_rates
from benchmarks.autoscaling_windows import measure_windows, window_cases
from benchmarks.design_case import DesignCase
from benchmarks.result import BenchmarkResult, CaseResult, ResultError
from deployments.environment import traces_folder
from simulator.errors import SimulationError
from simulator.scaling.day_fleet import DaySpec
from simulator.scaling.rate_trace import RateTrace, read_rates

_WHERE = (
    "servegen/client_rates_m-large.npz    client rates of m-large, from github.com/alibaba/ServeGen"
)
_SHORT_S = 1800.0


class TracesMissing(Exception):
    """Says where to get them."""


def main(argv: Sequence[str] | None = None) -> int:
    """0 if a result was written, 1 if not."""
    options = _parse_options(sys.argv[1:] if argv is None else argv)
    try:
        trace = _synthetic_trace() if options.short else _find_trace(traces_folder())
        plan = DayPlan(trace, typical_day(trace))
        if options.short:
            plan = DayPlan(trace, 1, peak_rps=60.0, warm_up_s=_SHORT_S, length_s=_SHORT_S)
        results = [
            case for name in options.case for case in _CASES[name](plan, options, day_spec(_CASE))
        ]
        BenchmarkResult.of_this_machine(
            name="autoscaling",
            config={
                "trace": trace.name,
                "day": plan.day,
                "peak_rps": plan.peak_rps,
                "lead_s": LEAD_S,
                "cases": list(options.case),
                "short": options.short,
                "window_rps": options.window_rps,
            },
            seed=0,
            results=results,
        ).write(options.out)
    except (TracesMissing, SimulationError, ResultError, OSError) as error:
        print(f"benchmarks.autoscaling: {error}", file=sys.stderr)
        return 1
    return 0


def _find_trace(folder: Path | None) -> RateTrace:
    if folder is None:
        raise TracesMissing(
            "HEADWATER_TRACES names no folder with public traces. Put there\n"
            f"{_WHERE}\nor make up traffic with --short."
        )
    path = folder / "servegen/client_rates_m-large.npz"
    if not path.is_file():
        raise TracesMissing(f"{path} is not there. It comes from\n{_WHERE}")
    return read_rates(path)


def _synthetic_trace() -> RateTrace:
    """Two days with a night each, and a rate that wanders."""
    draw = np.random.default_rng(0)
    steps = np.arange(288)
    wander = np.exp(np.cumsum(draw.normal(0, 0.05, len(steps))))
    rates = 40 * (1.2 - np.cos(2 * np.pi * steps / 144)) * wander
    return RateTrace("synthetic", rates, 3 * rates)


def _rates(plan: DayPlan, options: argparse.Namespace, _: DaySpec) -> list[CaseResult]:
    counts = plan.trace.counts(10.0)
    if not options.short:
        return measure_rates(counts, is_short=False)
    return measure_rates(counts[: len(counts) // 4], leads_s=(30.0,), is_short=True)


def _day(plan: DayPlan, options: argparse.Namespace, spec: DaySpec) -> list[CaseResult]:
    return measure_day(plan, spec, is_short=options.short)


def _windows(plan: DayPlan, options: argparse.Namespace, spec: DaySpec) -> list[CaseResult]:
    capacity = calibrate(plan.shape, spec, plan.peak_rps)
    rps: float | None = options.window_rps
    if rps is not None:
        num_replicas = round(capacity.num_replicas * rps / plan.peak_rps)
        capacity = Capacity(num_replicas, capacity.replica_rps, capacity.replica_concurrency)
        plan = DayPlan(plan.trace, plan.day, plan.shape, rps)
    title = f"window_{plan.peak_rps:.0f}_rps"
    windows = measure_windows(plan, spec, capacity, LEAD_S)
    for window in windows:
        print(window, flush=True)
    return window_cases(title, windows)


def _hits(_plan: DayPlan, options: argparse.Namespace, spec: DaySpec) -> list[CaseResult]:
    measured = measure_hits(spec, 40.0) if options.short else measure_hits(spec)
    for figures in measured:
        print(figures, flush=True)
    return hit_cases(measured)


_CASE = DesignCase()
_CASES: Mapping[str, Callable[[DayPlan, argparse.Namespace, DaySpec], list[CaseResult]]] = (
    MappingProxyType({"rates": _rates, "day": _day, "windows": _windows, "hits": _hits})
)


def _parse_options(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.autoscaling", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--case", choices=[*_CASES], action="append", help="(default: all)")
    parser.add_argument("--short", action="store_true", help="a small form; needs no files")
    parser.add_argument(
        "--window-rps", type=float, metavar="R", help="peak of the windows (default: the day's)"
    )
    options = parser.parse_args(argv)
    options.case = options.case or [*_CASES]
    return options


if __name__ == "__main__":
    sys.exit(main())
