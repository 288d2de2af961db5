"""llm-d's inference scheduler: a weighted sum of scores between 0 and 1, the highest is taken.

Source: ``pkg/epp/framework/plugins/scheduling/scorer`` (llm-d/llm-d-router, 2026). By default the
matched share of the prompt counts 3, the waiting queue between the fleet's longest (0) and shortest
(1) counts 2, and the free share of the KV pool 2; the match is of an LRU of 31,250 blocks per
replica that were sent there. The precise example takes the match from cache events, and weighs
prefix, KV and queue 2, 1, 1.
"""

from collections.abc import Sequence

from app.routing.candidate import Choice, RouteRequest
from simulator.policies.base import Seen, cheapest


def llm_d(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    return weighted(request, seen, [replica.told_tokens for replica in seen], 3, 2, 2)


def llm_d_precise(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    return weighted(request, seen, [r.candidate.num_cached_tokens for r in seen], 2, 1, 1)


def weighted(
    request: RouteRequest,
    seen: Sequence[Seen],
    matched: Sequence[int],
    prefix_weight: float,
    queue_weight: float,
    kv_weight: float,
) -> Choice:
    """``matched``: tokens of the prompt, by replica."""
    queues = [replica.num_waiting for replica in seen]
    longest, range_ = max(queues), max(queues) - min(queues)
    costs = []
    for replica, num_matched, queue in zip(seen, matched, queues, strict=True):
        load = replica.candidate.load
        usage = replica.num_active_blocks / load.num_blocks if load.num_blocks else 0.0
        queue_score = (longest - queue) / range_ if range_ else 1.0
        costs.append(
            -prefix_weight * num_matched / request.num_prompt_tokens
            - queue_weight * queue_score
            - kv_weight * (1 - min(1.0, usage))
        )
    return Choice(seen[cheapest(costs, request.rotation)].candidate)
