"""How busy one replica is, in the model that only routes: a prefill server that takes one prompt
after the other, and answers that only count as load. Must not know caches or policies.
"""

import heapq
from collections import deque
from typing import NamedTuple

from engine.messages import LoadView


class Placement(NamedTuple):
    """What a request that was sent there takes."""

    start_s: float
    """Its prefill, or the transfer before it, begins."""
    first_token_s: float
    end_s: float
    num_blocks: int
    num_prompt_tokens: int
    num_cached_tokens: int


class ReplicaLoad:
    """Owner of one replica's requests in flight, or of what a gateway knows of them."""

    __slots__ = (
        "_ends",
        "_num_cached_tokens",
        "_num_prompt_tokens",
        "_own_ends",
        "_starts",
        "_view_at_rest",
        "free_at_s",
        "num_active_blocks",
    )

    def __init__(self) -> None:
        self.free_at_s = 0.0
        """When the prefill of all requests so far is done."""
        self.num_active_blocks = 0
        """Of requests in flight when it was last looked at."""
        self._ends: list[tuple[float, int]] = []
        self._starts: deque[float] = deque()
        self._own_ends: list[float] = []
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0
        self._view_at_rest: LoadView | None = None
        """Until anything comes or ends: what it reports while no prompt waits or is computed."""

    def add(self, placement: Placement, *, is_own: bool) -> None:
        self._view_at_rest = None
        self.free_at_s = max(self.free_at_s, placement.first_token_s)
        self._starts.append(placement.start_s)
        heapq.heappush(self._ends, (placement.end_s, placement.num_blocks))
        self.num_active_blocks += placement.num_blocks
        self._num_prompt_tokens += placement.num_prompt_tokens
        self._num_cached_tokens += placement.num_cached_tokens
        if is_own:
            heapq.heappush(self._own_ends, placement.end_s)

    def look(
        self, now_s: float, prefill_token_s: float, capacity_blocks: int, num_held_blocks: int
    ) -> LoadView:
        """What its engine would report. Precondition: time doesn't run back."""
        ends, starts = self._ends, self._starts
        while ends and ends[0][0] <= now_s:
            self.num_active_blocks -= heapq.heappop(ends)[1]
            self._view_at_rest = None
        if self._view_at_rest is not None:
            return self._view_at_rest
        while starts and starts[0] <= now_s:
            starts.popleft()
        backlog_s = self.free_at_s - now_s
        num_free = capacity_blocks - self.num_active_blocks
        view = LoadView(
            len(ends) - len(starts),
            len(starts),
            # Transfers that stand before it in the queue count as prefill of that length.
            int(backlog_s / prefill_token_s) if backlog_s > 0.0 else 0,
            max(0, num_free),
            capacity_blocks,
            1.0 / prefill_token_s,
            num_prompt_tokens=self._num_prompt_tokens,
            num_cached_prompt_tokens=self._num_cached_tokens,
            num_empty_blocks=capacity_blocks - num_held_blocks,
        )
        if backlog_s <= 0.0:
            self._view_at_rest = view
        return view

    def num_own(self, now_s: float) -> int:
        """In flight, of the gateway that looks."""
        own_ends = self._own_ends
        while own_ends and own_ends[0] <= now_s:
            heapq.heappop(own_ends)
        return len(own_ends)
