"""SGLang's ``cache_aware``, the default of its router.

Source: ``sgl-router/src/policies/cache_aware.rs`` (sgl-project/sglang, 0.2), with its defaults. If
the busiest replica has more than 32 requests and more than 1.1 times of what the idlest has, the
whole fleet falls back to the shortest queue. Else the longest match takes the prompt if it is more
than half of it, and the replica with the smallest tree if not. ``sgl-model-gateway`` (2026) sends
the latter to the shortest queue instead: ``sglang_gateway``.
"""

from collections.abc import Sequence

from app.routing.candidate import Choice, RouteRequest
from simulator.policies.base import Seen, cheapest, told_shares

CACHE_THRESHOLD = 0.5
BALANCE_ABS_THRESHOLD = 32
BALANCE_REL_THRESHOLD = 1.1


def sglang(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    sizes = [replica.told_size for replica in seen]
    return _cache_aware(request, seen, sizes)


def sglang_gateway(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    return _cache_aware(request, seen, [replica.num_requests for replica in seen])


def _cache_aware(
    request: RouteRequest, seen: Sequence[Seen], costs_of_miss: Sequence[int]
) -> Choice:
    """Of equals one at random: the original takes whichever its hash map names first."""
    counts = [replica.num_requests for replica in seen]
    low, high = min(counts), max(counts)
    if high - low > BALANCE_ABS_THRESHOLD and high > BALANCE_REL_THRESHOLD * low:
        return Choice(seen[cheapest(counts, request.rotation)].candidate)
    shares = told_shares(request, seen)
    is_hit = max(shares) > CACHE_THRESHOLD
    costs = [-share for share in shares] if is_hit else costs_of_miss
    place = cheapest(costs, request.rotation)
    return Choice(seen[place].candidate)
