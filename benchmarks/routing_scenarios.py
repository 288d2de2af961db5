"""What happens to routing when a fleet changes or its traffic is lopsided, one replay per policy.

A prompt that everybody shares; a replica that joins an old fleet; one that is lost; coding agents
whose contexts outgrow the accelerator. Must not know which policies there are.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from app.routing.candidate import ReplicaRates
from benchmarks.routing_workload import SHARED_PROMPT
from simulator.outcome import Outcome, RequestOutcome
from simulator.policies.registry import RegisteredPolicy
from simulator.routing_model import RoutingModel
from simulator.routing_spec import FleetChange, RoutingSpec
from simulator.workload import Workload, hit_ceiling

WATCHED_S = 600.0
"""After a change, at most."""
SHARED_UTILISATION = 0.7


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    imbalance: float
    share_of_ceiling: float
    """Hits, of those that one cache without bounds would have."""
    ttft_mean_s: float


def shared_prompt(spec: RoutingSpec, policy: RegisteredPolicy, num_requests: int) -> SharedPrompt:
    """All traffic begins with one system prompt of 6,000 tokens."""
    speed = spec.num_replicas / spec.rates.prefill_token_s
    workload = SHARED_PROMPT.busy_workload(
        "shared_prompt", num_requests, speed, SHARED_UTILISATION, seed=0
    )
    outcome = RoutingModel(spec, policy, workload).run()
    return SharedPrompt(
        outcome.request_imbalance,
        outcome.hit_rate / hit_ceiling(workload),
        outcome.ttft_s.mean,
    )


@dataclass(frozen=True, slots=True)
class Joined:
    """Of the replica that joined; shares are relative to an equal share of the requests."""

    shares_by_minute: Sequence[float]
    ttft_ratio: float
    """Its mean over that of all others, in the time watched."""


def join(spec: RoutingSpec, policy: RegisteredPolicy, workload: Workload, when_s: float) -> Joined:
    """``spec`` is the fleet before."""
    outcome = RoutingModel(spec, policy, workload, [FleetChange(when_s)]).run()
    newcomer = outcome.engine_ids[-1]
    # Once the traffic ends nobody gets any.
    watched_s = min(WATCHED_S, workload.duration_s - when_s)
    shares = []
    for minute in range(max(1, int(watched_s // 60))):
        begin_s = when_s + 60 * minute
        counts = _counts(_between(outcome, begin_s, begin_s + 60))
        shares.append(counts[newcomer] * (spec.num_replicas + 1) / max(1, counts.total()))
    watched = _between(outcome, when_s, when_s + watched_s)
    return Joined(
        shares,
        _mean_ttft_s(r for r in watched if r.engine_id == newcomer)
        / _mean_ttft_s(r for r in watched if r.engine_id != newcomer),
    )


@dataclass(frozen=True, slots=True)
class Lost:
    """In the time watched after a replica was lost, with the requests that it had.

    In two minutes chance alone makes some busiest: of 400 requests dealt out at random to seven
    replicas one gets 1.18 times the mean.
    """

    imbalance: float
    """Requests of the busiest over the mean of those that are left."""
    prefill_imbalance: float
    """The same of prompt tokens that they computed."""
    ttft_mean_s: float


def lose(spec: RoutingSpec, policy: RegisteredPolicy, workload: Workload, when_s: float) -> Lost:
    changes = [FleetChange(when_s, lost_engine_id="e0")]
    outcome = RoutingModel(spec, policy, workload, changes).run()
    # Those that were in flight there came before, and were sent again.
    watched = [
        r
        for r in outcome.requests
        if when_s <= r.arrival_s < when_s + WATCHED_S
        or (r.arrival_s < when_s < r.first_token_s and r.engine_id != "e0")
    ]
    left = replace(outcome, requests=watched, engine_ids=outcome.engine_ids[1:])
    return Lost(left.request_imbalance, left.prefill_imbalance, left.ttft_s.mean)


def coarsened(workload: Workload, stride: int) -> Workload:
    """Every ``stride``-th key only, as the production index keeps them: keys are chained."""
    return replace(
        workload,
        block_size_tokens=workload.block_size_tokens * stride,
        requests=tuple(
            replace(request, block_keys=request.block_keys[stride - 1 :: stride])
            for request in workload.requests
        ),
    )


def agentic_spec(workload: Workload, num_replicas: int, undersized: int = 4) -> RoutingSpec:
    """Accelerators hold together a fraction of what sessions say, nodes' memories three times as
    much as the accelerators, NVMe all. Bandwidths are those of 320 KiB per token over PCIe 5, one
    NVMe and a 100 Gbit/s network.
    """
    keys = {key for request in workload.requests for key in request.block_keys}
    num_tokens = len(keys) * workload.block_size_tokens
    cache_tokens = num_tokens // (undersized * num_replicas)
    return RoutingSpec(
        num_replicas,
        ReplicaRates(
            prefill_token_s=1 / 6000,
            host_tokens_per_s=150_000.0,
            disk_tokens_per_s=15_000.0,
            peer_tokens_per_s=35_000.0,
        ),
        cache_tokens,
        host_tokens=3 * cache_tokens,
        disk_tokens=num_tokens,
    )


def _between(outcome: Outcome, begin_s: float, end_s: float) -> list[RequestOutcome]:
    return [r for r in outcome.requests if begin_s <= r.arrival_s < end_s]


def _counts(requests: Iterable[RequestOutcome]) -> Counter[str]:
    return Counter(request.engine_id for request in requests)


def _mean_ttft_s(requests: Iterable[RequestOutcome]) -> float:
    """0 if there are none."""
    times = [request.ttft_s for request in requests]
    return sum(times) / max(1, len(times))
