"""Ray Serve LLM's ``PrefixCacheAffinityRouter``, as of Ray 2.60.

Source: ``ray/llm/_internal/serve/routing_policies/prefix_aware/prefix_aware_router.py``. Its tree
holds the text of what was sent, per replica, and never hears of evictions. If the longest match is
at least a tenth of the prompt, the replicas with that match are candidates, else those with the
smallest tree; of the candidates the shortest queue is taken. The switch to the power of two when
queues differ by more than a threshold is off by default (infinity).
"""

from collections.abc import Sequence

from app.routing.candidate import Choice, RouteRequest
from simulator.policies.base import Seen, cheapest, told_shares
from simulator.policies.load_only import power_of_two

MIN_MATCH_RATE = 0.1


def ray_prefix(
    request: RouteRequest, seen: Sequence[Seen], imbalanced_threshold: float = float("inf")
) -> Choice:
    counts = [replica.num_requests for replica in seen]
    if max(counts) - min(counts) > imbalanced_threshold:
        return power_of_two(request, seen)
    shares = told_shares(request, seen)
    longest = max(shares)
    if longest < MIN_MATCH_RATE:
        smallest = min(replica.told_size for replica in seen)
        places = [i for i, replica in enumerate(seen) if replica.told_size == smallest]
    else:
        places = [i for i, share in enumerate(shares) if share == longest]
    place = places[cheapest([counts[i] for i in places], request.rotation)]
    return Choice(seen[place].candidate)
