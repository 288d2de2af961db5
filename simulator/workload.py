"""What a simulated fleet is asked: requests with their times, lengths and prefixes.

A prompt is known by its length and the keys of its full blocks, equal where prompts begin alike; no
token is. Must not know files, fleets or policies.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b

from engine.messages import ServiceClass
from simulator.errors import SimulationError


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """One request, as its client sends it."""

    request_id: str
    arrival_s: float
    """When it comes, or for one that follows another: not before."""
    num_prompt_tokens: int
    num_answer_tokens: int
    """Exactly so many are generated."""
    block_keys: Sequence[bytes] = ()
    """Of the prompt's first full blocks, 16 bytes each: equal keys mean equal prompts so far. What
    comes after the last one is like no other prompt.
    """
    service_class: ServiceClass = ServiceClass.STANDARD
    session: str | None = None
    """Requests of one session come one after the other."""
    think_s: float | None = None
    """It comes so long after the request before it in its session ended. None: at ``arrival_s``,
    whatever became of others.
    """


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order of their arrival; those of a session in theirs."""

    name: str
    block_size_tokens: int
    """Tokens that one key stands for."""
    requests: tuple[SimulatedRequest, ...]

    def __post_init__(self) -> None:
        if not self.requests:
            raise SimulationError(f"the workload {self.name} holds no requests")

    def __len__(self) -> int:
        return len(self.requests)

    @property
    def duration_s(self) -> float:
        """To the last arrival that the trace names."""
        return max(request.arrival_s for request in self.requests)

    def first(self, num_requests: int) -> "Workload":
        return replace(self, requests=self.requests[:num_requests])

    def accelerated(self, factor: float) -> "Workload":
        """Arrivals ``factor`` times as dense; think times stay."""
        if not factor > 0:
            raise SimulationError(f"arrivals can't be {factor} times as dense; take a factor > 0")
        return replace(
            self,
            requests=tuple(replace(r, arrival_s=r.arrival_s / factor) for r in self.requests),
        )

    def spread(self, tick_s: float, seed: int = 0) -> "Workload":
        """Each arrival at random within the tick that follows it: some traces have a coarse clock.

        Draws as the independent replay of routing policies does.
        """
        draw = random.Random(seed)
        moved = [replace(r, arrival_s=r.arrival_s + draw.random() * tick_s) for r in self.requests]
        moved.sort(key=lambda request: request.arrival_s)
        return replace(self, requests=tuple(moved))


AFFINITY_TOKENS = 2048
"""A prompt's beginning that names its conversation where no session is given: long enough to tell
conversations with one system prompt apart.
"""


def affinity_of(request: SimulatedRequest, block_size_tokens: int) -> int | None:
    """64 bits, equal for requests of one session, or of prompts that begin alike; None if nothing
    tells.
    """
    if request.session is not None:
        return _hash64(request.session.encode())
    keys = request.block_keys[: max(1, AFFINITY_TOKENS // block_size_tokens)]
    return _hash64(keys[-1]) if keys else None


def hit_ceiling(workload: Workload) -> float:
    """Share of the prompt tokens that one cache without bounds would have held."""
    seen: set[bytes] = set()
    num_tokens = num_hits = 0
    for request in workload.requests:
        num_tokens += request.num_prompt_tokens
        num_blocks = 0
        for key in request.block_keys:
            if key not in seen:
                break
            num_blocks += 1
        seen.update(request.block_keys[num_blocks:])
        # The last token is computed in any case.
        num_hits += min(num_blocks * workload.block_size_tokens, request.num_prompt_tokens - 1)
    return num_hits / num_tokens


def followers(workload: Workload) -> dict[str, SimulatedRequest]:
    """By the id of the request before it in its session: those that wait for its answer."""
    after: dict[str, SimulatedRequest] = {}
    last_of: dict[str, SimulatedRequest] = {}
    for request in workload.requests:
        if request.session is None:
            continue
        before = last_of.get(request.session)
        if before is not None and request.think_s is not None:
            after[before.request_id] = request
        last_of[request.session] = request
    return after


@lru_cache(maxsize=1 << 16)
def _hash64(name: bytes) -> int:
    return int.from_bytes(blake2b(name, digest_size=8).digest())
