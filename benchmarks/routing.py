"""Benchmark of routing alone: ``HEADWATER_TRACES=DIR python -m benchmarks.routing --out FILE``.

Every policy that a router ships, beside ours, chooses for the same traffic in virtual time, on a
fleet in which only routing is real (`simulator.routing_model`): hits, time to first token and
imbalance on Mooncake's conversation trace at two loads, with exact views and with four gateways
that learn a second later what the others sent; a prompt that all share, a replica that joins or is
lost, coding agents. ``--synthetic`` replays traffic made up here, and needs no files.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from app.routing.candidate import ReplicaRates
from benchmarks.result import BenchmarkResult, CaseResult
from benchmarks.routing_cases import (
    OURS,
    best_published,
    bound_cases,
    join_cases,
    loss_cases,
    replay_cases,
    shared_prompt_cases,
)
from benchmarks.routing_ray import compare
from benchmarks.routing_scenarios import agentic_spec, coarsened, join, lose, shared_prompt
from benchmarks.routing_workload import CHAT
from benchmarks.statistics import paired_ratio, percentile
from deployments.environment import traces_folder
from engine.messages import KEY_STRIDE
from simulator.outcome import Outcome
from simulator.policies.registry import POLICIES, create_policy
from simulator.routing_bound import bound
from simulator.routing_model import RoutingModel
from simulator.routing_spec import RoutingSpec
from simulator.traces import read_agentic_coding, read_mooncake
from simulator.workload import Workload, hit_ceiling

NUM_REPLICAS = 8
CACHE_TOKENS = 3_072_000
PEER_TOKENS_PER_S = 60_000.0
LOADS_TOKENS_PER_S = (6000, 4600)
TICK_S = 3.0
"""Of the clock of the conversation trace: requests are spread over it."""
NUM_DRAWS = 5
"""Of the times within a tick, or of traffic that is made up."""
PROMISED_REQUESTS_PER_S = 20_000.0
NUM_REPEATS = 3
SYNTHETIC_UTILISATION = 0.75
PROMISED_TTFT_S = {"exact": {6000: 1.38, 4600: 2.16}, "stale": {6000: 1.60, 4600: 2.60}}
CHANGING = (
    "round_robin", "least_requests", "consistent_hash", "ray_prefix", "sglang", "dynamo_tuned",
    "conductor", "headwater",
)  # fmt: skip
"""Policies that the scenarios are replayed with: the ones that differ in kind."""
AGENTIC_SESSIONS_PER_S = 0.05
AGENTIC_REPLICAS = 4
WHERE_TRACES_ARE = """\
  mooncake/conversation_trace.jsonl  github.com/kvcache-ai/Mooncake, FAST25-release/traces
  agentic_coding/*.json.gz           github.com/callanjfox/kv-cache-tester"""


class TracesMissing(Exception):
    """Says which file is missing and where it comes from."""


def find_traces(folder: Path | None) -> tuple[Path, Path]:
    """The conversation trace, and the folder of coding sessions."""
    if folder is None:
        raise TracesMissing(
            "HEADWATER_TRACES names no folder with public traces. Put there\n"
            f"{WHERE_TRACES_ARE}\nor replay made-up traffic with --synthetic."
        )
    conversation, agentic = folder / "mooncake/conversation_trace.jsonl", folder / "agentic_coding"
    for path, is_there in (
        (conversation, conversation.is_file()),
        (agentic, any(agentic.glob("*.json.gz"))),
    ):
        if not is_there:
            raise TracesMissing(
                f"{path} is not there. Traces come from\n{WHERE_TRACES_ARE}\n"
                "Or replay made-up traffic with --synthetic."
            )
    return conversation, agentic


def make_spec(prefill_tokens_per_s: float, *, is_stale: bool = False) -> RoutingSpec:
    return RoutingSpec(
        NUM_REPLICAS,
        ReplicaRates(prefill_token_s=1 / prefill_tokens_per_s, peer_tokens_per_s=PEER_TOKENS_PER_S),
        CACHE_TOKENS,
        num_gateways=4 if is_stale else 1,
        stale_s=1.0 if is_stale else 0.0,
    )


def replay_all(
    title: str, spec: RoutingSpec, workload: Workload, names: Sequence[str]
) -> dict[str, Outcome]:
    outcomes = {}
    for name in names:
        begin_s = time.process_time()
        outcomes[name] = outcome = RoutingModel(spec, create_policy(name), workload).run()
        speed = len(workload) / (time.process_time() - begin_s)
        ttft = outcome.ttft_s
        print(
            f"{title:24} {name:21} hit {outcome.hit_rate:.3f}  ttft {ttft.mean:6.2f} s"
            f"  p99 {ttft.p99:6.2f} s  under 2 s {outcome.share_under(2):.3f}"
            f"  imbalance {outcome.request_imbalance:.3f}  {speed:7,.0f} requests/s"
        )
    return outcomes


def measure_loads(
    title: str,
    draws: Sequence[Workload],
    loads_tokens_per_s: Sequence[int],
    promised_s: Mapping[str, Mapping[int, float]],
) -> list[CaseResult]:
    """All policies on the first of ``draws`` of the traffic, with exact views and stale ones; ours
    and the best published one on the others, too.
    """
    cases = []
    for load in loads_tokens_per_s:
        limit = bound(make_spec(load), draws[0])
        cases += bound_cases(f"{title}_{load}", limit)
        for views in ("exact", "stale"):
            name = f"{title}_{load}_{views}"
            spec = make_spec(load, is_stale=views == "stale")
            outcomes = replay_all(name, spec, draws[0], list(POLICIES))
            best = best_published(outcomes)
            pairs = [outcomes] + [replay_all(name, spec, w, [OURS, best]) for w in draws[1:]]
            ours, theirs = ([pair[n].ttft_s.mean for pair in pairs] for n in (OURS, best))
            promised = promised_s.get(views, {}).get(load)
            cases += replay_cases(name, outcomes, limit, promised, paired_ratio(ours, theirs))
    return cases


def measure_changes(title: str, workload: Workload, load: int) -> list[CaseResult]:
    """A replica joins, or is lost, in the middle."""
    spec = make_spec(load, is_stale=True)
    middle_s = workload.requests[len(workload) // 2].arrival_s
    cases = []
    for name in CHANGING:
        policy = create_policy(name)
        joined = join(spec, policy, workload, middle_s)
        lost = lose(spec, policy, workload, middle_s)
        print(f"{title:24} {name:21} {joined}\n{'':46} {lost}")
        cases += join_cases(title, name, joined) + loss_cases(title, name, lost)
    return cases


def measure_shared_prompt(num_requests: int) -> list[CaseResult]:
    cases = []
    for name in POLICIES:
        result = shared_prompt(make_spec(6000, is_stale=True), create_policy(name), num_requests)
        print(f"{'shared_prompt':24} {name:21} {result}")
        cases += shared_prompt_cases(name, result)
    return cases


def measure_agentic(folder: Path) -> list[CaseResult]:
    recorded = read_agentic_coding(folder, sessions_per_s=AGENTIC_SESSIONS_PER_S)
    workload = coarsened(recorded, KEY_STRIDE)
    spec = agentic_spec(workload, AGENTIC_REPLICAS)
    ceiling = hit_ceiling(workload)
    outcomes = replay_all("agentic", spec, workload, CHANGING)
    return [
        case
        for name, outcome in outcomes.items()
        for case in (
            CaseResult(
                case=f"agentic_{name}_hit", value=outcome.hit_rate, unit="share", limit=ceiling
            ),
            CaseResult(case=f"agentic_{name}_ttft_mean", value=outcome.ttft_s.mean, unit="s"),
            CaseResult(case=f"agentic_{name}_ttft_p99", value=outcome.ttft_s.p99, unit="s"),
        )
    ]


def measure_ray(workload: Workload) -> CaseResult:
    agreement = compare(workload, NUM_REPLICAS)
    return CaseResult(
        case="ray_prefix_chooses_as_rays_own_tree",
        value=agreement.num_same / agreement.num_requests,
        unit="share",
        limit=1.0,
    )


def measure_speed(workload: Workload) -> list[CaseResult]:
    """Simulated requests per second of one core's time, with exact views: the median of repeats.

    Processor time, since other programs may want the core.
    """
    cases = []
    for name in ("round_robin", "least_requests", "dynamo", OURS):
        speeds = []
        for _ in range(NUM_REPEATS):
            model = RoutingModel(make_spec(LOADS_TOKENS_PER_S[0]), create_policy(name), workload)
            gc.collect()  # what the run before left is not this one's to clear away
            begin_s = time.process_time()
            model.run()
            speeds.append(len(workload) / (time.process_time() - begin_s))
        cases.append(
            CaseResult(
                case=f"model_speed_{name}",
                value=percentile(speeds, 50),
                unit="requests/s",
                limit=PROMISED_REQUESTS_PER_S,
            )
        )
    return cases


def measure_synthetic(num_requests: int) -> list[CaseResult]:
    load = LOADS_TOKENS_PER_S[0]
    draws = [
        CHAT.busy_workload(
            "synthetic", num_requests, load * NUM_REPLICAS, SYNTHETIC_UTILISATION, seed
        )
        for seed in range(NUM_DRAWS)
    ]
    return [
        measure_ray(draws[0]),
        *measure_speed(draws[0]),
        *measure_loads("synthetic", draws, [load], {}),
        *measure_changes("synthetic", draws[0], load),
        *measure_shared_prompt(num_requests),
    ]


def measure_traces(folder: Path | None) -> list[CaseResult]:
    conversation, agentic = find_traces(folder)
    recorded = read_mooncake(conversation)
    draws = [recorded.spread(TICK_S, seed) for seed in range(NUM_DRAWS)]
    return [
        measure_ray(recorded.first(2000)),
        *measure_speed(recorded),
        *measure_loads("conversation", draws, LOADS_TOKENS_PER_S, PROMISED_TTFT_S),
        *measure_changes("conversation", draws[0], LOADS_TOKENS_PER_S[0]),
        *measure_agentic(agentic),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="result file to write")
    parser.add_argument(
        "--synthetic", action="store_true", help="only traffic that is made up here; no files"
    )
    parser.add_argument("--num-requests", type=int, default=6000, help="of made-up traffic")
    args = parser.parse_args()
    try:
        results = [] if args.synthetic else measure_traces(traces_folder())
    except TracesMissing as error:
        print(error, file=sys.stderr)
        return 2
    synthetic = measure_synthetic(args.num_requests)
    # Ray's tree and the speed are measured on recorded traffic, too, which counts.
    known = {result.case for result in results}
    results += [result for result in synthetic if result.case not in known]
    BenchmarkResult.of_this_machine(
        name="routing",
        config={
            "num_replicas": NUM_REPLICAS,
            "cache_tokens": CACHE_TOKENS,
            "peer_tokens_per_s": PEER_TOKENS_PER_S,
            "spread_s": TICK_S,
            "num_draws": NUM_DRAWS,
            "synthetic_utilisation": SYNTHETIC_UTILISATION,
            "stale_gateways": 4,
            "stale_s": 1.0,
            "num_requests": args.num_requests,
            "agentic_sessions_per_s": AGENTIC_SESSIONS_PER_S,
            "agentic_replicas": AGENTIC_REPLICAS,
            "is_synthetic": args.synthetic,
        },
        seed=0,
        results=results,
    ).write(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
