"""The cases of `benchmarks.routing_http` from what its rounds gave. Opens no socket."""

from __future__ import annotations

import msgspec

from benchmarks.result import CaseResult
from benchmarks.routing_http_contest import (
    OURS,
    PEERS,
    Rounds,
    round_load,
    warm_up_workload,
)
from benchmarks.routing_http_scenarios import Scenario
from benchmarks.routing_http_simulated import Encode, RoundSimulator
from benchmarks.serving_summary import compare
from benchmarks.statistics import percentile

GOALS = {"power_of_two": 3.0, "ray_prefix": 1.3}
"""How many times shorter the mean TTFT should be."""

KEPT = {
    *("ttft_mean", "ttft_p50", "ttft_p95", "ttft_p99", "tpot_mean", "e2e_mean", "idle_ttft_p50"),
    *("hit_rate", "prefilled_tokens", "requests_per_s", "succeeded", "errors", "unfinished"),
    *("cpu_share", "machine_cpu_share", "send_lag_mean"),
}

POLICIES = {"headwater": "headwater", "power_of_two": "power_of_two", "ray_prefix": "ray_prefix"}
"""Of the simulator, by contestant."""


def compared(scenario_name: str, rounds: Rounds) -> list[CaseResult]:
    """Ours beside each peer: medians over the rounds, and ratios of pairs of rounds."""
    cases: list[CaseResult] = []
    for name in [name for name in rounds if name != OURS]:
        pairs = list(zip(rounds[OURS], rounds[name], strict=True))
        times_shorter = [_value(b, "ttft_mean") / _value(a, "ttft_mean") for a, b in pairs]
        prefix = f"{scenario_name}_{name}"
        cases += [
            CaseResult(
                case=f"{prefix}_ttft_mean_times_shorter",
                value=percentile(times_shorter, 50.0),
                unit="1",
                limit=GOALS.get(name),
            ),
            *(
                msgspec.structs.replace(case, case=f"{prefix}_{case.case}")
                for case in compare(pairs, PEERS[name])
                if case.case in KEPT
            ),
        ]
    return cases


def simulated(scenario: Scenario, rounds: Rounds, encode: Encode) -> list[CaseResult]:
    """The first round of each contestant that the simulator has a policy for, beside what was
    measured."""
    simulator = RoundSimulator(scenario, encode)
    cases: list[CaseResult] = []
    for name, policy in POLICIES.items():
        if name not in rounds:
            continue
        outcome = simulator.run(policy, round_load(scenario, 0), "0", warm_up_workload(scenario))
        measured = rounds[name][0]
        for case, value, unit in (
            ("ttft_mean", outcome.ttft_s * 1e3, "ms"),
            ("tpot_mean", outcome.tpot_s * 1e3, "ms"),
            ("hit_rate", outcome.hit_rate, "1"),
        ):
            cases.append(
                CaseResult(
                    case=f"{scenario.name}_simulated_{name}_{case}",
                    value=value,
                    unit=unit,
                    peer="the first round over HTTP",
                    peer_value=_value(measured, case),
                )
            )
    return cases


def _value(cases: list[CaseResult], name: str) -> float:
    return next(case.value for case in cases if case.case == name)
