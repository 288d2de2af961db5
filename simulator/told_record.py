"""What a router without cache events remembers of what it sent where. Must not know what replicas
hold, or how busy they are.
"""

from collections import deque
from collections.abc import Sequence

from app.routing.candidate import Candidate
from simulator.policies.base import Seen
from simulator.policies.preble import WINDOW_S, allocation_cost_s
from simulator.routing_cache import FleetCaches, TierCapacities
from simulator.workload import SimulatedRequest


class ToldRecord:
    """The prompts that were sent, by the number of the replica, and how much work those of the
    last minutes were.
    """

    def __init__(self, max_blocks: int, block_size_tokens: int) -> None:
        """``max_blocks``: of each replica."""
        self._block_size = block_size_tokens
        self._sent = FleetCaches(TierCapacities(max_blocks))
        self._recent: deque[tuple[float, int, float]] = deque()
        self._counts: list[int] = []
        self._costs_s: list[float] = []

    def add_replica(self) -> None:
        self._sent.add_replica()
        self._counts.append(0)
        self._costs_s.append(0.0)

    def forget_replica(self, replica: int) -> None:
        self._sent.clear(replica)

    def note(self, sent_s: float, replica: int, request: SimulatedRequest) -> None:
        longest = max(self._sent.matches(request.block_keys))
        num_new = max(1, request.num_prompt_tokens - longest * self._block_size)
        cost_s = allocation_cost_s(num_new, request.num_prompt_tokens)
        self._sent.use(replica, request.block_keys)
        self._recent.append((sent_s, replica, cost_s))
        self._counts[replica] += 1
        self._costs_s[replica] += cost_s

    def add_to(
        self, candidates: Sequence[Candidate], replicas: Sequence[int], keys: Sequence[bytes]
    ) -> list[Seen]:
        matches = self._sent.matches(keys)
        return [
            Seen(
                candidate,
                matches[replica] * self._block_size,
                self._sent.num_blocks(replica),
                self._counts[replica],
                self._costs_s[replica],
            )
            for candidate, replica in zip(candidates, replicas, strict=True)
        ]

    def advance(self, now_s: float) -> None:
        recent = self._recent
        while recent and recent[0][0] <= now_s - WINDOW_S:
            _, replica, cost_s = recent.popleft()
            self._counts[replica] -= 1
            self._costs_s[replica] -= cost_s
