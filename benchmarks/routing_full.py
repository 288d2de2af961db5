"""Routing with the production scheduler: ``HEADWATER_TRACES=DIR python -m benchmarks.routing_full
--out FILE``.

What `benchmarks.routing` replays on Mooncake's conversation trace, in `simulator.fleet`: chunked
prefill beside decodes, batches, preemption. Fewer policies, since a run takes a hundred times as
long; virtual time, so that runs are the same everywhere.
"""

import argparse
import sys
from pathlib import Path

from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.routing import (
    CACHE_TOKENS,
    LOADS_TOKENS_PER_S,
    NUM_REPLICAS,
    PEER_TOKENS_PER_S,
    TICK_S,
    TracesMissing,
    find_traces,
)
from benchmarks.routing_cases import OURS
from deployments.environment import traces_folder
from engine.performance_profile import StepCost
from simulator.fleet import FleetSpec, simulate
from simulator.outcome import Outcome
from simulator.performance import Bandwidths, LinearModel
from simulator.replica_spec import DEFAULT_CONFIG, ReplicaSpec
from simulator.traces import read_mooncake
from simulator.workload import Workload

POLICIES = (OURS, "conductor", "dynamo_tuned", "least_ttft_with_pull")
VIEWS = {"exact": (1, 0.0), "stale": (4, 1.0)}
"""Gateways, and how much later they hear of what others sent."""
STEP_BASE_S, PER_DECODE_S = 0.015, 2e-4
MAX_STEP_TOKENS = 2048


def make_replica(prefill_tokens_per_s: float) -> ReplicaSpec:
    cost = StepCost(
        base_s=STEP_BASE_S,
        per_prefill_token_s=1 / prefill_tokens_per_s,
        per_decode_s=PER_DECODE_S,
    )
    config = DEFAULT_CONFIG.model_copy(update={"max_num_batched_tokens": MAX_STEP_TOKENS})
    model = LinearModel(cost, Bandwidths(peer_tokens_per_s=PEER_TOKENS_PER_S))
    return ReplicaSpec(model, CACHE_TOKENS, config=config)


def measure(workload: Workload) -> list[CaseResult]:
    results: list[CaseResult] = []
    for load in LOADS_TOKENS_PER_S:
        replica = make_replica(load)
        for view, (num_gateways, stale_s) in VIEWS.items():
            outcomes: dict[str, Outcome] = {}
            for policy in POLICIES:
                spec = FleetSpec(
                    NUM_REPLICAS,
                    replica,
                    policy=policy,
                    num_gateways=num_gateways,
                    stale_s=stale_s,
                )
                outcomes[policy] = outcome = simulate(workload, spec)
                print(
                    f"{load} {view:6} {policy:21} ttft {outcome.ttft_s.mean:.3f} s"
                    f"  tpot {_tpot_mean_s(outcome) * 1000:.1f} ms  hit {outcome.hit_rate:.3f}",
                    flush=True,
                )
            results += _cases(f"conversation_{load}_{view}", outcomes)
    return results


def _cases(title: str, outcomes: dict[str, Outcome]) -> list[CaseResult]:
    """Ours beside each other policy."""
    ours = outcomes[OURS]
    return [
        CaseResult(case=f"{title}_{name}", value=value, unit="s", peer=policy, peer_value=theirs)
        for policy, outcome in outcomes.items()
        if policy != OURS
        for name, value, theirs in (
            (f"ttft_mean_beside_{policy}", ours.ttft_s.mean, outcome.ttft_s.mean),
            (f"ttft_p99_beside_{policy}", ours.ttft_s.p99, outcome.ttft_s.p99),
            (f"tpot_mean_beside_{policy}", _tpot_mean_s(ours), _tpot_mean_s(outcome)),
        )
    ]


def _tpot_mean_s(outcome: Outcome) -> float:
    assert outcome.tpot_s is not None, "answers of the trace have several tokens"
    return outcome.tpot_s.mean


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing_full", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--num-requests", type=int, help="only the first ones of the trace")
    options = parser.parse_args(arguments)
    try:
        conversation, _ = find_traces(traces_folder())
    except TracesMissing as error:
        print(f"benchmarks.routing_full: {error}", file=sys.stderr)
        return 1
    workload = read_mooncake(conversation).spread(TICK_S)
    if options.num_requests is not None:
        workload = workload.first(options.num_requests)
    results = measure(workload)
    BenchmarkResult.of_this_machine(
        name="routing_full",
        config={
            "num_replicas": NUM_REPLICAS,
            "cache_tokens": CACHE_TOKENS,
            "step_base_s": STEP_BASE_S,
            "per_decode_s": PER_DECODE_S,
            "max_step_tokens": MAX_STEP_TOKENS,
            "peer_tokens_per_s": PEER_TOKENS_PER_S,
            "num_requests": len(workload),
        },
        seed=0,
        results=results,
    ).write(options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
