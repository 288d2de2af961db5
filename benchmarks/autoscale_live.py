"""Who scales before the load arrives: ``python -m benchmarks.autoscale_live --out FILE``.

On a local Serve each contestant gets the same load in turn, whose rate triples within 30 s, twice.
Up to twelve replicas stand behind one gateway; they compute nothing, but take the time of a model,
also for their start (`paced`), or compute a small model (``--scenario smollm2``). Contestants:
the product with its forecast and replicas asleep; the same gateway and engines under Serve's own
autoscaling policy, which gets true counts (`benchmarks.autoscale_live_rival`), at three targets
with its quickest delays, and once with its default delays; and a fleet of the peak's size. With
``--scenario ladder`` the product alone, whose replicas start from the object store or, in turn,
from weights in the node's memory; nobody sleeps.
Rounds go through all contestants, from another one on each time. The quickstart's model must be
in the cache; its tokenizer is the real one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.autoscale_live_file import PARKED_COST
from benchmarks.autoscale_live_run import Run, measure
from benchmarks.autoscale_live_scenarios import SCENARIOS, Scenario, contestants
from benchmarks.autoscale_live_summary import described, outcome_of, summarized, timelines
from benchmarks.machine import collect_git_sha
from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.serving_server import MeasurementError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; 0 if a result was written, 1 if not."""
    options = _parse_options(argv)
    scenarios = [SCENARIOS[name] for name in options.scenario]
    try:
        runs = _earlier(options.runs)
        for scenario in scenarios:
            for number in range(options.rounds):
                for name in _order(scenario, options.contestant, number):
                    runs.append(_run(scenario, name, number, options))
        cases = _write(scenarios, runs, options)
    except (MeasurementError, OSError, ValueError) as error:
        print(f"benchmarks.autoscale_live: {error}", file=sys.stderr)
        return 1
    for case in cases:
        print(f"{case.case:<52}{case.value:>12.3f} {case.unit:<10}{case.peer_value or ''}")
    return 0


def _order(scenario: Scenario, wanted: Sequence[str] | None, number: int) -> list[str]:
    """Who comes first in a round rotates."""
    names = [c.name for c in contestants(scenario) if not wanted or c.name in wanted]
    first = number % len(names) if names else 0
    return names[first:] + names[:first]


def _run(scenario: Scenario, name: str, number: int, options: argparse.Namespace) -> Run:
    contestant = next(c for c in contestants(scenario) if c.name == name)
    run = measure(scenario, contestant, number, model=options.model, git_sha=collect_git_sha())
    outcome = outcome_of(run, scenario)
    print(
        f"{scenario.name} round {number + 1}, {name}: TTFT p99 {outcome.ramp_ttft_p99:.2f} s over "
        f"the ramps, {outcome.late_share:.4f} late, {outcome.num_failed:.0f} failed, "
        f"{outcome.replica_seconds:.0f} replica-s, {outcome.parked_seconds:.0f} of them asleep",
        file=sys.stderr,
    )
    if options.runs is not None:
        with options.runs.open("ab") as file:
            file.write(msgspec.json.encode(run) + b"\n")
    return run


def _earlier(file: Path | None) -> list[Run]:
    if file is None or not file.exists():
        return []
    return [msgspec.json.decode(line, type=Run) for line in file.read_bytes().splitlines()]


def _write(
    scenarios: Sequence[Scenario], runs: Sequence[Run], options: argparse.Namespace
) -> list[CaseResult]:
    cases = [case for scenario in scenarios for case in summarized(scenario, runs, PARKED_COST)]
    BenchmarkResult.of_this_machine(
        name="autoscale_live",
        config={
            "model": options.model,
            "parked_cost": PARKED_COST,
            "scenarios": [described(scenario) for scenario in scenarios],
            "runs": [f"{run.scenario} {run.contestant} {run.round}" for run in runs],
        },
        seed=0,
        results=cases,
    ).write(options.out)
    if options.timelines is not None:
        options.timelines.write_text(timelines(runs), "utf-8")
    return cases


def _parse_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.autoscale_live", description=__doc__
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="result file to write")
    add("--timelines", type=Path, help="CSV to write: replicas and TTFT per second")
    add("--runs", type=Path, help="file that each run is added to; those in it count, too")
    add("--model", default="smollm2-135m-instruct", help="in the model cache")
    add("--scenario", choices=[*SCENARIOS], action="append", help="(default: all)")
    add("--contestant", action="append", help="by name (default: all)")
    add("--rounds", type=int, default=1, help="of all contestants; 0: only what is in --runs")
    options = parser.parse_args(argv)
    options.scenario = options.scenario or [*SCENARIOS]
    known = {c.name for name in options.scenario for c in contestants(SCENARIOS[name])}
    unknown = sorted(set(options.contestant or ()) - known)
    if unknown:
        parser.error(f"--contestant {unknown[0]} is none of {', '.join(sorted(known))}")
    if options.rounds < 0:
        parser.error("--rounds must be at least 0")
    return options


if __name__ == "__main__":
    sys.exit(main())
