"""NVIDIA Dynamo's KV router: the lowest cost in blocks, from an exact index.

Source: ``lib/kv-router/src/scheduling/selector/default.rs`` (ai-dynamo/dynamo, 1.x), at temperature
0, without taints and shared caches. Blocks that wait for their prefill, with the request's own,
less the credit for what is cached, times ``prefill_load_scale``; and the blocks of all requests in
flight. By default the scale is 1, and cached blocks count three quarters on the host and a quarter
on disk; on long prompts a scale of 16 does better than the default.
"""

from collections.abc import Sequence

from app.routing.candidate import Candidate, Choice, RouteRequest
from simulator.policies.base import Seen, cheapest, num_blocks

HOST_CREDIT = 0.75
DISK_CREDIT = 0.25
TUNED_PREFILL_LOAD_SCALE = 16.0


def dynamo(request: RouteRequest, seen: Sequence[Seen], prefill_load_scale: float = 1.0) -> Choice:
    costs = [_cost_blocks(request, replica, prefill_load_scale) for replica in seen]
    return Choice(seen[cheapest(costs, request.rotation)].candidate)


def dynamo_tuned(request: RouteRequest, seen: Sequence[Seen]) -> Choice:
    return dynamo(request, seen, TUNED_PREFILL_LOAD_SCALE)


def _cost_blocks(request: RouteRequest, replica: Seen, prefill_load_scale: float) -> float:
    candidate = replica.candidate
    incoming = num_blocks(request.num_prompt_tokens, candidate)
    active = replica.num_prefill_tokens / candidate.block_size_tokens
    prefill = max(0.0, active + incoming - _credit_blocks(candidate))
    return prefill_load_scale * prefill + replica.num_active_blocks + incoming


def _credit_blocks(candidate: Candidate) -> float:
    held = candidate.held
    device = num_blocks(held.accelerator_tokens, candidate)
    if held.host_tokens == 0 and held.disk_tokens == 0:
        return device
    host = max(device, num_blocks(held.host_tokens, candidate))
    disk = max(host, num_blocks(held.disk_tokens, candidate))
    return device + HOST_CREDIT * (host - device) + DISK_CREDIT * (disk - host)
