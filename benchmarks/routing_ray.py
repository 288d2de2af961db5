"""Our function of Ray's ``PrefixCacheAffinityRouter`` beside the tree that Ray ships: do both
choose the same?

The tree is Ray's own class, fed with text as Ray feeds it; what the router's method decides from
its answers, in three lines, is followed here. (A test does the same with the router itself on a
real cluster.) A block of a prompt is one character. Both see the same random queues.
"""

import random
from dataclasses import dataclass
from typing import Any

from ray.llm._internal.serve.routing_policies.prefix_aware.prefix_tree import PrefixTree

from app.routing.candidate import Candidate, HeldPrefix, RouteRequest
from engine.messages import LoadView
from simulator.policies.base import Seen
from simulator.policies.ray_prefix import MIN_MATCH_RATE, ray_prefix
from simulator.told_record import ToldRecord
from simulator.workload import SimulatedRequest, Workload

FIRST_CHARACTER = 0x10000
"""Beyond the surrogates, which are no text."""


@dataclass(frozen=True, slots=True)
class Agreement:
    num_requests: int
    num_same: int
    """Ours is among those that Ray's would draw from."""


def compare(workload: Workload, num_replicas: int, seed: int = 0) -> Agreement:
    """Each is told what ours chose. Prompts without a whole block are left out."""
    draw = random.Random(seed)
    names = [f"e{number}" for number in range(num_replicas)]
    tree = PrefixTree()
    tree.add_tenants(names, 0.0)
    told = ToldRecord(10**9, workload.block_size_tokens)
    for _ in names:
        told.add_replica()
    texts = BlockText()
    requests = [request for request in workload.requests if request.block_keys]
    num_same = 0
    for number, request in enumerate(requests):
        queues = [draw.randrange(6) for _ in names]
        text = texts.of(request)
        candidates = [
            _candidate(name, queue, workload.block_size_tokens)
            for name, queue in zip(names, queues, strict=True)
        ]
        seen: list[Seen] = told.add_to(candidates, range(num_replicas), request.block_keys)
        num_tokens = len(request.block_keys) * workload.block_size_tokens
        route = RouteRequest(num_tokens, rotation=number)
        chosen = names.index(ray_prefix(route, seen).candidate.engine_id)
        num_same += chosen in ray_choices(tree, names, text, queues)
        told.note(request.arrival_s, chosen, request)
        tree.insert(text, names[chosen], request.arrival_s)
    return Agreement(len(requests), num_same)


def ray_choices(tree: Any, names: list[str], text: str, queues: list[int]) -> set[int]:
    """The shortest queues of those that ``_prefix_match_best_replicas`` returns."""
    matched, tenants = tree.prefix_match(text, names)
    if len(matched) / len(text) < MIN_MATCH_RATE:
        tenants = tree.get_smallest_tenants()
    places = [names.index(tenant) for tenant in tenants]
    shortest = min(queues[place] for place in places)
    return {place for place in places if queues[place] == shortest}


class BlockText:
    """Prompts as text: a character of its own for every block's key."""

    def __init__(self) -> None:
        self._characters: dict[bytes, str] = {}

    def of(self, request: SimulatedRequest) -> str:
        known = self._characters
        return "".join(
            [known.setdefault(k, chr(FIRST_CHARACTER + len(known))) for k in request.block_keys]
        )


def _candidate(name: str, num_running: int, block_size_tokens: int) -> Candidate:
    load = LoadView(num_running=num_running)
    return Candidate(name, load, block_size_tokens, HeldPrefix(), num_running, 0, 0, 0)
