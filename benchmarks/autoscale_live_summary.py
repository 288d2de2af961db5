"""The cases of `benchmarks.autoscale_live`, and its timelines, from what its runs gave.

Opens no socket.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from math import inf
from operator import attrgetter

from benchmarks.autoscale_live_load import Span
from benchmarks.autoscale_live_run import Run, Sample
from benchmarks.autoscale_live_scenarios import COLD, OURS, SCENARIOS, STAGED, STATIC, Scenario
from benchmarks.result import CaseResult
from benchmarks.statistics import percentile

GOAL_TIMES_SHORTER = 5.0
GOAL_TIMES_FEWER = 5.0
MAX_COST = 1.0
"""Of the peer's."""
TIMELINE_COLUMNS = (
    *("scenario", "contestant", "round", "second", "rate_per_s", "num_requests", "ttft_p50_s"),
    *("ttft_max_s", "num_late", "num_alive", "num_serving", "num_parked"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run came to. Times in seconds; a failed request counts as late, not as a time."""

    ramp_ttft_p99: float
    """Of those that came during a ramp or in its aftermath, as the scenario has them."""
    ttft_p50: float
    ttft_p99: float
    ramp_late_share: float
    """Above the TTFT target."""
    late_share: float
    tpot_p99: float
    replica_seconds: float
    """From the start to the end of each replica's process."""
    serving_seconds: float
    """Of those while it took requests."""
    parked_seconds: float
    """Of those while it was asleep, or on its way to sleep or out of it."""
    num_requests: float
    num_failed: float
    """Errors, and answers that never ended; of the whole run."""
    max_replicas: float
    num_changes: float
    """Seconds after which there were more replicas, or fewer."""
    send_lag_p99: float
    """Of the load itself."""
    machine_cpu_share: float

    def cost_s(self, parked_cost: float) -> float:
        """Replica-seconds, of which one asleep costs ``parked_cost``."""
        return self.replica_seconds - (1.0 - parked_cost) * self.parked_seconds


UNITS = {
    **dict.fromkeys(("ramp_ttft_p99", "ttft_p50", "ttft_p99", "tpot_p99", "send_lag_p99"), "s"),
    **dict.fromkeys(("ramp_late_share", "late_share", "machine_cpu_share"), "1"),
    **dict.fromkeys(("replica_seconds", "serving_seconds", "parked_seconds"), "replica-s"),
    **dict.fromkeys(("num_requests", "num_failed"), "requests"),
    "max_replicas": "replicas",
    "num_changes": "changes",
}


def outcome_of(run: Run, scenario: Scenario) -> Outcome:
    """Of what came from 0 s on. Raises `ValueError` if nothing of it succeeded."""
    measured, ramps = Span(0.0, scenario.shape.schedule.duration_s), scenario.shape.ramps
    requests = [request for request in run.requests if measured.covers(request.at_s)]
    in_ramps = [r for r in requests if any(ramp.covers(r.at_s) for ramp in ramps)]
    ttfts = [r.ttft_s for r in requests if r.ttft_s is not None]
    ramp_ttfts = [r.ttft_s for r in in_ramps if r.ttft_s is not None]
    tpots = [r.tpot_s for r in requests if r.tpot_s is not None]

    def late_share(times_s: Sequence[float], num_requests: int) -> float:
        return 1.0 - sum(time_s <= scenario.ttft_target_s for time_s in times_s) / num_requests

    def seconds(count: Callable[[Sample], int]) -> float:
        return integral(run.samples, measured, count)

    inside = [sample for sample in run.samples if measured.covers(sample.at_s)]
    return Outcome(
        ramp_ttft_p99=percentile(ramp_ttfts, 99.0),
        ttft_p50=percentile(ttfts, 50.0),
        ttft_p99=percentile(ttfts, 99.0),
        ramp_late_share=late_share(ramp_ttfts, len(in_ramps)),
        late_share=late_share(ttfts, len(requests)),
        tpot_p99=percentile(tpots, 99.0),
        replica_seconds=seconds(lambda sample: sample.num_alive),
        serving_seconds=seconds(lambda sample: sample.num_serving),
        parked_seconds=seconds(lambda sample: sample.num_parked),
        num_requests=len(requests),
        num_failed=sum(r.error is not None for r in run.requests) + run.num_unfinished,
        max_replicas=max(sample.num_alive for sample in inside),
        num_changes=sum(a.num_alive != b.num_alive for a, b in pairwise(inside)),
        send_lag_p99=percentile([r.send_lag_s for r in requests], 99.0),
        machine_cpu_share=run.machine_cpu_share,
    )


def integral(samples: Sequence[Sample], span: Span, count: Callable[[Sample], int]) -> float:
    """Replica-seconds within ``span``; each sample holds until the next one, the first from its
    begin and the last to its end."""
    if not samples:
        raise ValueError("the fleet was never looked at")
    begins_s = [-inf, *(sample.at_s for sample in samples[1:])]
    ends_s = [*begins_s[1:], inf]
    return sum(
        count(sample) * max(0.0, min(end_s, span.end_s) - max(begin_s, span.begin_s))
        for sample, begin_s, end_s in zip(samples, begins_s, ends_s, strict=True)
    )


def summarized(scenario: Scenario, runs: Iterable[Run], parked_cost: float) -> list[CaseResult]:
    """Medians over the rounds of each contestant, and ours beside the others."""
    outcomes: dict[str, list[Outcome]] = {}
    for run in runs:
        if run.scenario == scenario.name:
            outcomes.setdefault(run.contestant, []).append(outcome_of(run, scenario))
    cases = [
        CaseResult(
            case=f"{scenario.name}_{name}_{figure}",
            value=_median(outcomes_of_one, attrgetter(figure)),
            unit=unit,
        )
        for name, outcomes_of_one in outcomes.items()
        for figure, unit in UNITS.items()
    ]
    return [*cases, *_compared(scenario, outcomes, parked_cost)]


def best_of_serve(outcomes: Mapping[str, Sequence[Outcome]]) -> str | None:
    """The contestant of Serve's policy with the shortest p99 over the ramps, whatever it cost."""
    names = [name for name in outcomes if name not in (OURS, STATIC)]
    return min(names, key=lambda name: _median(outcomes[name], _ramp_ttft), default=None)


def _compared(
    scenario: Scenario, outcomes: Mapping[str, Sequence[Outcome]], parked_cost: float
) -> list[CaseResult]:
    """Ours beside each of the others; what is promised, beside the best of Serve's."""
    if COLD in outcomes and STAGED in outcomes:
        return _staged_beside_cold(scenario, outcomes[STAGED], outcomes[COLD])
    if OURS not in outcomes:
        return []
    best = best_of_serve(outcomes)
    cases: list[CaseResult] = []
    for name in [name for name in outcomes if name != OURS]:
        pair = outcomes[OURS], outcomes[name]
        cases += _beside(f"{scenario.name}_beside_{name}", *pair, parked_cost, is_best=name == best)
    return cases


def _beside(
    prefix: str,
    ours: Sequence[Outcome],
    theirs: Sequence[Outcome],
    parked_cost: float,
    *,
    is_best: bool,
) -> list[CaseResult]:
    def share(price: float) -> float:
        def cost_s(outcome: Outcome) -> float:
            return outcome.cost_s(price)

        return _median(ours, cost_s) / _median(theirs, cost_s)

    limit = GOAL_TIMES_SHORTER if is_best else None
    most = MAX_COST if is_best else None
    return [
        CaseResult(
            case=f"{prefix}_ramp_ttft_p99_times_shorter",
            value=_median(theirs, _ramp_ttft) / _median(ours, _ramp_ttft),
            unit="1",
            limit=limit,
        ),
        CaseResult(case=f"{prefix}_cost", value=share(1.0), unit="1", limit=most),
        CaseResult(
            case=f"{prefix}_cost_with_sleep_at_its_price",
            value=share(parked_cost),
            unit="1",
            limit=most,
        ),
    ]


def _staged_beside_cold(
    scenario: Scenario, staged: Sequence[Outcome], cold: Sequence[Outcome]
) -> list[CaseResult]:
    """Late requests and replica-seconds. Where none was late, one counts as half late."""

    def num_late(outcome: Outcome) -> float:
        return max(0.5, outcome.late_share * outcome.num_requests)

    cost_s = attrgetter("replica_seconds")
    prefix = f"{scenario.name}_staged_beside_cold"
    return [
        CaseResult(
            case=f"{prefix}_times_fewer_late",
            value=_median(cold, num_late) / _median(staged, num_late),
            unit="1",
            limit=GOAL_TIMES_FEWER,
        ),
        CaseResult(
            case=f"{prefix}_cost",
            value=_median(staged, cost_s) / _median(cold, cost_s),
            unit="1",
            limit=MAX_COST,
        ),
    ]


def timelines(runs: Iterable[Run]) -> str:
    """CSV, a row per second of each run."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(TIMELINE_COLUMNS)
    for run in runs:
        rows.writerows(_timeline(SCENARIOS[run.scenario], run))
    return out.getvalue()


def _timeline(scenario: Scenario, run: Run) -> Iterable[list[object]]:
    schedule = scenario.shape.schedule
    for second in range(int(schedule.duration_s)):
        span = Span(second, second + 1)
        requests = [request for request in run.requests if span.covers(request.at_s)]
        ttfts = [r.ttft_s for r in requests if r.ttft_s is not None]
        num_good = sum(ttft <= scenario.ttft_target_s for ttft in ttfts)
        before = [sample for sample in run.samples if sample.at_s < span.end_s]
        sample = (before or run.samples)[-1 if before else 0]
        yield [
            *(run.scenario, run.contestant, run.round, second),
            round(schedule.rate_at(second), 2),
            len(requests),
            *((round(percentile(ttfts, p), 3) if ttfts else "") for p in (50.0, 100.0)),
            len(requests) - num_good,
            *(sample.num_alive, sample.num_serving, sample.num_parked),
        ]


def described(scenario: Scenario) -> dict[str, object]:
    """For the result's configuration."""
    return {
        "name": scenario.name,
        "engine": dict(scenario.engine),
        "base_replicas": scenario.base_replicas,
        "peak_replicas": scenario.peak_replicas,
        "max_replicas": scenario.max_replicas,
        "shape": asdict(scenario.shape),
        "workload": asdict(scenario.workload),
        "ttft_target_s": scenario.ttft_target_s,
        "tpot_target_s": scenario.tpot_target_s,
        "targets": list(scenario.targets),
    }


def _ramp_ttft(outcome: Outcome) -> float:
    return outcome.ramp_ttft_p99


def _median(outcomes: Sequence[Outcome], figure: Callable[[Outcome], float]) -> float:
    return percentile([figure(outcome) for outcome in outcomes], 50.0)
