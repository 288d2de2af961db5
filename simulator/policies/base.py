"""What a routing policy may know of a fleet, published policies and our own alike: data and ties.

``Seen`` is one replica as the gateway that asks sees it: what an exact index and load views tell
(``Candidate``), and beside it what a router without cache events would believe of the replica from
its own sends alone. A policy is a pure function of a request and of what is seen; what rotates or
is drawn at random comes from ``RouteRequest.rotation``. Must not know who replays it.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from app.routing.candidate import Candidate, Choice, RouteRequest
from engine.seeds import mix64


class Seen(msgspec.Struct, frozen=True, gc=False):
    """One replica that could take the request."""

    candidate: Candidate
    told_tokens: int = 0
    """Of the prompt's first tokens, how many this router once sent there."""
    told_size: int = 0
    """Of all that it remembers to have sent there, in blocks; equal beginnings count once."""
    recent_requests: int = 0
    """That it sent there within the last three minutes."""
    recent_cost_s: float = 0.0
    """Of those, as ``preble.allocation_cost_s`` counts."""

    @property
    def num_requests(self) -> int:
        """Samples that run or wait there, or are on their way."""
        candidate, load = self.candidate, self.candidate.load
        shown = load.num_running + load.num_waiting + candidate.num_unseen
        # A view may be older than the submits before it: there are at least this gateway's own.
        return max(shown, candidate.num_in_flight)

    @property
    def num_waiting(self) -> int:
        return self.candidate.load.num_waiting + self.candidate.num_unseen

    @property
    def num_prefill_tokens(self) -> int:
        """Before this request, as far as they are not cached."""
        return self.candidate.load.pending_prefill_tokens + self.candidate.num_unseen_tokens

    @property
    def num_active_blocks(self) -> int:
        """Of the requests that run or wait there."""
        return self.candidate.load.num_blocks - self.candidate.load.num_free_blocks


class RoutingPolicy(Protocol):
    """Chooses among ``seen``, of which there is at least one. Pure: no state, no clock."""

    def __call__(self, request: RouteRequest, seen: Sequence[Seen]) -> Choice: ...


def draw_index(rotation: int, num_choices: int) -> int:
    """One of ``num_choices``, at random with ``rotation`` as the seed."""
    return mix64(rotation) % num_choices if num_choices > 1 else 0


def cheapest(costs: Sequence[float], rotation: int) -> int:
    """The index of the lowest cost; equal ones are drawn from."""
    lowest = min(costs)
    if costs.count(lowest) == 1:
        return costs.index(lowest)
    equal = [index for index, cost in enumerate(costs) if cost == lowest]
    return equal[draw_index(rotation, len(equal))]


def num_blocks(num_tokens: int, candidate: Candidate) -> int:
    """That ``num_tokens`` fill there, the last one perhaps in part."""
    return -(-num_tokens // candidate.block_size_tokens)


def told_shares(request: RouteRequest, seen: Sequence[Seen]) -> list[float]:
    """Of the prompt, that was sent to each before: in blocks, of which the last may be a part."""
    total = num_blocks(request.num_prompt_tokens, seen[0].candidate)
    return [num_blocks(replica.told_tokens, replica.candidate) / total for replica in seen]
