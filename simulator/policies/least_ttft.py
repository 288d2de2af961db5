"""The least predicted time to first token, from an exact index: what a published formula can do at
its best, as a yardstick.

``conductor`` is Mooncake's (Qin et al., FAST 2025, algorithm 1): a replica whose own match is less
than the best one by a factor of ``balancing_threshold`` pulls the rest of it, and else computes it.
The paper gives no threshold. ``least_ttft`` never pulls; ``least_ttft_with_pull`` does where that
is faster.
"""

from collections.abc import Sequence
from math import inf

from app.routing.candidate import (
    LOCAL,
    Candidate,
    Choice,
    RouteRequest,
    Source,
    SourceKind,
)
from simulator.policies.base import Seen, cheapest

BALANCING_THRESHOLD = 2.0


def least_ttft(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    costs = [
        queue_s(replica)
        + prefill_s(request, replica.candidate, replica.candidate.num_cached_tokens)
        for replica in seen
    ]
    return Choice(seen[cheapest(costs, request.rotation)].candidate)


def least_ttft_with_pull(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    holder = best_holder(seen)
    costs, sources = [], []
    for replica in seen:
        candidate = replica.candidate
        computed_s = prefill_s(request, candidate, candidate.num_cached_tokens)
        pulled_s = _pull_s(request, candidate, holder)
        costs.append(queue_s(replica) + min(computed_s, pulled_s))
        sources.append(_source(holder, is_pulled=pulled_s < computed_s))
    place = cheapest(costs, request.rotation)
    return Choice(seen[place].candidate, sources[place])


def conductor(
    request: RouteRequest,
    seen: Sequence[Seen],
    balancing_threshold: float = BALANCING_THRESHOLD,
) -> Choice:
    holder = best_holder(seen)
    costs, sources = [], []
    for replica in seen:
        candidate = replica.candidate
        num_cached = candidate.num_cached_tokens
        pulled_s = _pull_s(request, candidate, holder)
        # A product, since most replicas have no match to divide by.
        is_pulled = pulled_s < inf and holder.num_cached_tokens >= balancing_threshold * num_cached
        source_s = pulled_s if is_pulled else prefill_s(request, candidate, num_cached)
        costs.append(queue_s(replica) + source_s)
        sources.append(_source(holder, is_pulled=is_pulled))
    place = cheapest(costs, request.rotation)
    return Choice(seen[place].candidate, sources[place])


def best_holder(seen: Sequence[Seen]) -> Candidate:
    """The first one with the longest match on its accelerator."""
    return max((replica.candidate for replica in seen), key=lambda c: c.num_cached_tokens)


def queue_s(replica: Seen) -> float:
    """Until the prefill of all requests before is done."""
    return replica.num_prefill_tokens * _token_s(replica.candidate)


def prefill_s(request: RouteRequest, candidate: Candidate, num_cached_tokens: int) -> float:
    rates = candidate.rates
    num_uncached = max(0, request.num_prompt_tokens - num_cached_tokens)
    mean_position = (request.num_prompt_tokens + num_cached_tokens) / 2
    return (
        rates.prefill_base_s
        + num_uncached * _token_s(candidate)
        + rates.prefill_attended_s * num_uncached * mean_position
    )


def _pull_s(request: RouteRequest, candidate: Candidate, holder: Candidate) -> float:
    """With the prefill of the rest; infinite if there is nothing to pull, or no network."""
    num_pulled = holder.num_cached_tokens - candidate.num_cached_tokens
    if num_pulled <= 0 or candidate.rates.peer_tokens_per_s <= 0:
        return inf
    transfer_s = num_pulled / candidate.rates.peer_tokens_per_s
    return transfer_s + prefill_s(request, candidate, holder.num_cached_tokens)


def _source(holder: Candidate, *, is_pulled: bool) -> Source:
    return Source(SourceKind.PEER, holder.engine_id) if is_pulled else LOCAL


def _token_s(candidate: Candidate) -> float:
    rate = candidate.load.prefill_tokens_per_s
    return candidate.rates.prefill_token_s or (1 / rate if rate else 0.0)
