"""Benchmark of admission to the KV pool: ``python -m benchmarks.kv_admission --out FILE``.

A queue of requests meets a pool that holds a quarter of what the allowed number of sequences would
fill on average. Each way to admit (`EngineConfig.kv_admission`) works the same queues off, in
virtual time (`benchmarks.kv_admission_run`): the default one beside reserving the worst case, with
what it would be to know all lengths as the limit. What a decision costs is measured in real time.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.kv_admission_run import (
    BLOCK_SIZE_TOKENS,
    GEOMETRY,
    KnownDemand,
    Outcome,
    Run,
    Workload,
)
from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.statistics import paired_ratio, percentile
from engine.block_manager import BlockManager
from engine.config import EngineConfig
from engine.predicted_demand import PredictedDemand

_MAX_TOKENS = 1024
_MAX_NUM_SEQS = 64
_POOL_SHARE = 0.25
"""Of what ``_MAX_NUM_SEQS`` sequences fill on average."""
_MOST_RECOMPUTED_PERCENT = 5.0
_MOST_DECISION_US = 100.0
_POLICIES = ("predicted", "optimistic", "worst_case", "known")


def log_normal(draw: random.Random, median: float = 150.0, sigma: float = 1.0) -> int:
    """As answers of chat models are."""
    return round(median * draw.lognormvariate(0.0, sigma))


def short(draw: random.Random) -> int:
    """Far below what they may have."""
    return draw.randint(8, 48)


def bimodal(draw: random.Random) -> int:
    """Yes or no, and now and then an essay."""
    return draw.randint(4, 40) if draw.random() < 0.8 else draw.randint(500, 900)


Lengths = Callable[[random.Random], int]
DISTRIBUTIONS: dict[str, tuple[Lengths, Lengths]] = {
    "log_normal": (log_normal, log_normal),
    "short": (short, short),
    "bimodal": (bimodal, bimodal),
    "short_then_log_normal": (short, log_normal),
    "log_normal_then_short": (log_normal, short),
}
"""Of the first and of the second half of the queue."""


def make_workload(
    halves: tuple[Lengths, Lengths], num_requests: int, seed: int, max_tokens: int = _MAX_TOKENS
) -> Workload:
    draw = random.Random(seed)
    lens = [halves[2 * i // num_requests](draw) for i in range(num_requests)]
    return Workload(
        prompt_lens=[draw.randint(16, 112) for _ in range(num_requests)],
        output_lens=[max(1, min(max_tokens, length)) for length in lens],
        max_tokens=max_tokens,
    )


def make_run(policy: str, workload: Workload, max_num_seqs: int = _MAX_NUM_SEQS) -> Run:
    """``known``: with all lengths known."""
    num_tokens = _POOL_SHARE * max_num_seqs * workload.mean_len
    longest = max(workload.prompt_lens) + workload.max_tokens
    num_blocks = int(max(num_tokens, longest)) // BLOCK_SIZE_TOKENS + 1
    settings = {} if policy == "known" else {"kv_admission": policy}
    return Run(
        workload,
        EngineConfig.model_validate({"max_num_seqs": max_num_seqs, **settings}),
        num_blocks,
        (lambda blocks: KnownDemand(blocks, workload.output_lens)) if policy == "known" else None,
    )


def measure_distribution(name: str, num_requests: int, seeds: range) -> list[CaseResult]:
    """Each seed is another queue, worked off once by each policy."""
    outcomes: dict[str, list[Outcome]] = {policy: [] for policy in _POLICIES}
    for seed in seeds:
        workload = make_workload(DISTRIBUTIONS[name], num_requests, seed)
        for policy in _POLICIES:
            outcomes[policy].append(make_run(policy, workload).work_off())
            print(f"{name} {seed} {policy}: {outcomes[policy][-1]}", file=sys.stderr)
    speeds = {p: [o.tokens_per_s for o in outcomes[p]] for p in _POLICIES}
    medians = {policy: percentile(speeds[policy], 50) for policy in _POLICIES}
    results = [
        CaseResult(
            case=f"{name}_{policy}_tokens_per_s",
            value=medians[policy],
            unit="tok/s",
            peer="worst_case",
            peer_value=medians["worst_case"],
            ratio=paired_ratio(speeds[policy], speeds["worst_case"]),
            limit=medians["known"],
        )
        for policy in ("predicted", "optimistic")
    ]
    for policy in ("predicted", "optimistic", "worst_case"):
        of_policy = outcomes[policy]
        shares = [100 * outcome.recomputed_share for outcome in of_policy]
        results += [
            CaseResult(
                case=f"{name}_{policy}_recomputed_max",
                value=max(shares),
                unit="%",
                limit=_MOST_RECOMPUTED_PERCENT,
            ),
            CaseResult(
                case=f"{name}_{policy}_running",
                value=percentile([outcome.mean_running for outcome in of_policy], 50),
                unit="sequences",
            ),
            CaseResult(
                case=f"{name}_{policy}_failed",
                value=sum(outcome.num_failed for outcome in of_policy),
                unit="requests",
            ),
        ]
    return results


def measure_decision(num_decisions: int = 2000) -> CaseResult:
    """One look ahead beside ``_MAX_NUM_SEQS`` that run, with all that was learned changed."""
    num_seqs = _MAX_NUM_SEQS + 1
    never = 2 * _MAX_TOKENS
    workload = Workload([100] * num_seqs, [never] * num_seqs, _MAX_TOKENS)
    config = EngineConfig(max_num_seqs=num_seqs, max_num_batched_tokens=8192)
    run = Run(workload, config, num_seqs * never)
    *running, candidate = run.sequences
    demand = PredictedDemand(BlockManager(run.num_blocks, GEOMETRY, prefix_caching=True))
    durations_us = []
    for index in range(num_decisions):
        for sequence in running:
            sequence.generated_ids.append(1)
        if index % (_MAX_TOKENS // 2) == 0:
            for sequence in running:
                sequence.generated_ids.clear()
        demand.lengths.observe_end(demand.lengths.first_trial(0), 1 + index % _MAX_TOKENS)
        started_s = time.perf_counter()
        demand.fits(running, candidate, num_new_blocks=7)
        durations_us.append((time.perf_counter() - started_s) * 1e6)
    return CaseResult(
        case=f"decision_p50_{_MAX_NUM_SEQS}_running",
        value=percentile(durations_us, 50),
        unit="us",
        limit=_MOST_DECISION_US,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kv_admission", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument("--num-requests", type=int, default=1000, help="in each queue")
    parser.add_argument("--num-seeds", type=int, default=5, help="queues per distribution, 5 least")
    args = parser.parse_args()
    results = [measure_decision()]
    for name in DISTRIBUTIONS:
        results += measure_distribution(name, args.num_requests, range(args.num_seeds))
    for result in results:
        ratio = "" if result.ratio is None else f"  {result.ratio.median:.2f} x {result.peer}"
        limit = "" if result.limit is None else f"  limit {result.limit:,.1f}"
        print(f"{result.case:45} {result.value:10,.2f} {result.unit}{limit}{ratio}")
    BenchmarkResult.of_this_machine(
        name="kv_admission",
        config={
            "num_requests": args.num_requests,
            "num_seeds": args.num_seeds,
            "max_num_seqs": _MAX_NUM_SEQS,
            "max_tokens": _MAX_TOKENS,
            "pool_share": _POOL_SHARE,
            "step_times": EngineConfig().paced.model_dump(),
        },
        seed=0,
        results=results,
    ).write(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
