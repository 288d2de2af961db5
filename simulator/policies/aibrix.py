"""AIBrix's ``prefix-cache``.

Source: ``pkg/plugins/gateway/algorithms/prefix_cache.go`` (vllm-project/aibrix, 0.4), with its
defaults: a hash table of what was sent, and no events. If request counts differ by more than 8,
the least busy replica takes the request. Else replicas with a match are tried by descending
percentage, then by ascending requests; the first with no more requests than the mean and one
standard deviation takes it, and without one the least busy. (The documentation says 16 and two
deviations.)
"""

from collections.abc import Sequence
from statistics import fmean, pstdev

from app.routing.candidate import Choice, RouteRequest
from simulator.policies.base import Seen, cheapest, told_shares

MAX_DIFFERENCE = 8
DEVIATIONS = 1.0


def aibrix(request: RouteRequest, seen: Sequence[Seen], deviations: float = DEVIATIONS) -> Choice:
    counts = [replica.num_requests for replica in seen]
    if max(counts) - min(counts) <= MAX_DIFFERENCE:
        percents = [int(100 * share) for share in told_shares(request, seen)]
        limit = fmean(counts) + deviations * pstdev(counts)
        fitting = [
            (-percent, count)
            for percent, count in zip(percents, counts, strict=True)
            if percent and count <= limit
        ]
        if fitting:
            best = min(fitting)
            ranks = [
                0 if (-percent, count) == best else 1
                for percent, count in zip(percents, counts, strict=True)
            ]
            return Choice(seen[cheapest(ranks, request.rotation)].candidate)
    return Choice(seen[cheapest(counts, request.rotation)].candidate)
