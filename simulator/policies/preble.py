"""AIBrix's ``prefix-cache-preble``, after Preble's E2 (Srivatsa et al., ICLR 2025).

Source: ``pkg/plugins/gateway/algorithms/prefix_cache_preble.go`` (vllm-project/aibrix, 2025), with
its defaults. Exploit: if more than half of the prompt is in the tree of what was sent, the replica
with the deepest match takes it, of several the one with the fewest requests of the last three
minutes. Explore: else the one to which the least work was allocated in that time, where a request's
work is the prefill of what it missed, by a fit of Mistral 7B on a V100, and 45 tokens of 150 ms.
A leaf of the original's tree that several replicas hold counts for each of them in part; here, a
request counts for the one that it was sent to.
"""

from collections.abc import Sequence

from app.routing.candidate import Choice, RouteRequest
from simulator.policies.base import Seen, cheapest, told_shares

MATCH_THRESHOLD = 0.5
WINDOW_S = 180.0
DECODE_TOKENS = 45
DECODE_TOKEN_S = 0.15


def preble(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    shares = told_shares(request, seen)
    longest = max(shares)
    if longest > MATCH_THRESHOLD:
        holders = [r for r, share in zip(seen, shares, strict=True) if share == longest]
        return Choice(min(holders, key=lambda replica: replica.recent_requests).candidate)
    costs = [replica.recent_cost_s for replica in seen]
    return Choice(seen[cheapest(costs, request.rotation)].candidate)


def allocation_cost_s(num_new_tokens: int, num_prompt_tokens: int) -> float:
    """Of one request, of whose prompt the last ``num_new_tokens`` were not in the tree."""
    miss_rate = num_new_tokens / num_prompt_tokens
    return miss_rate * prefill_s(num_new_tokens, num_prompt_tokens) + DECODE_TOKENS * DECODE_TOKEN_S


def prefill_s(num_new_tokens: int, num_prompt_tokens: int) -> float:
    """Preble's fit, scaled to a V100 by AIBrix; its constants are in ms."""
    n = num_new_tokens
    if n >= 384:
        linear_ms = 0.27106428 * n + 10.52444263
    elif n >= 192:
        linear_ms = -295 + 3.125 * n - 6.4e-3 * n**2
    else:
        linear_ms = 55.0
    if num_prompt_tokens <= 1024:
        attention_ms = 0.8
    else:
        attention_ms = 4.65e-4 * num_prompt_tokens + 0.398
        if n <= 1024:
            attention_ms /= 2
    quadratic_ms = -18.425 + 9.65e-3 * n + 5.4e-6 * n**2 if n >= 4096 else 0.0
    return (linear_ms + attention_ms + quadratic_ms) / 0.9 / 1000
