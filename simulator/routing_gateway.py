"""What one gateway of the routing model sees of the fleet: exact, or its own sends at once and
those of other gateways a while later. Must not know how a replica works a request off.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.routing.candidate import (
    ALONE,
    NOTHING_HELD,
    Candidate,
    Gateways,
    HeldPrefix,
    ReplicaRates,
)
from app.routing.traffic import TrafficMeter
from simulator.policies.base import Seen
from simulator.routing_cache import FleetCaches
from simulator.routing_load import Placement, ReplicaLoad
from simulator.told_record import ToldRecord
from simulator.workload import SimulatedRequest


class Send(NamedTuple):
    """A request that some gateway sent to a replica, and what the replica will say of it."""

    sent_s: float
    replica: int
    request: SimulatedRequest
    placement: Placement


@dataclass(slots=True)
class Picture:
    """Caches and loads, by the number of the replica."""

    caches: FleetCaches
    loads: list[ReplicaLoad]

    def add_replica(self) -> None:
        self.caches.add_replica()
        self.loads.append(ReplicaLoad())

    def forget_replica(self, replica: int) -> None:
        self.caches.clear(replica)
        self.loads[replica] = ReplicaLoad()

    def note(self, send: Send, *, is_own: bool) -> None:
        self.caches.use(send.replica, send.request.block_keys)
        self.loads[send.replica].add(send.placement, is_own=is_own)


class SimulatedGateway:
    """Owner of one picture of the fleet, or a reader of the true one (``is_exact``)."""

    def __init__(
        self,
        rank: int,
        picture: Picture,
        block_size_tokens: int,
        rates: ReplicaRates,
        capacity_blocks: int,
        stale_s: float,
        told: ToldRecord | None,
        *,
        is_exact: bool,
    ) -> None:
        """``rank``: among the gateways, from 0."""
        self._rank = rank
        self._traffic = TrafficMeter()
        self._picture = picture
        self._block_size = block_size_tokens
        self._rates = rates
        self._capacity = capacity_blocks
        self._stale_s = stale_s
        self._told = told
        self._is_exact = is_exact
        self._inbox: deque[Send] = deque()

    def add_replica(self) -> None:
        if not self._is_exact:
            self._picture.add_replica()
        if self._told is not None:
            self._told.add_replica()

    def forget_replica(self, replica: int) -> None:
        """At once: a closed connection says so."""
        self._inbox = deque(send for send in self._inbox if send.replica != replica)
        if not self._is_exact:
            self._picture.forget_replica(replica)
        if self._told is not None:
            self._told.forget_replica(replica)

    def hear(self, send: Send) -> None:
        """Another gateway sent this."""
        self._inbox.append(send)

    def others(self, now_s: float, num_gateways: int) -> Gateways:
        """What it takes the others to send."""
        if num_gateways == 1:
            return ALONE
        traffic = self._traffic
        return Gateways(
            self._rank, num_gateways, traffic.requests_per_s(now_s), traffic.mean_uncached_tokens
        )

    def note(self, send: Send, *, is_own: bool) -> None:
        if not self._is_exact:
            self._picture.note(send, is_own=is_own)
            if is_own:
                placement = send.placement
                num_uncached = placement.num_prompt_tokens - placement.num_cached_tokens
                self._traffic.record(send.sent_s, num_uncached)
        if self._told is not None:
            self._told.note(send.sent_s, send.replica, send.request)

    def look(
        self, now_s: float, request: SimulatedRequest, replicas: Sequence[int], names: Sequence[str]
    ) -> list[Seen]:
        """``replicas``: the numbers of those that serve; ``names``: by number."""
        inbox = self._inbox
        while inbox and inbox[0].sent_s + self._stale_s <= now_s:
            self.note(inbox.popleft(), is_own=False)
        candidates = self._candidates(now_s, request.block_keys, replicas, names)
        if self._told is None:
            return [Seen(candidate) for candidate in candidates]
        self._told.advance(now_s)
        return self._told.add_to(candidates, replicas, request.block_keys)

    def _held(self, keys: Sequence[bytes]) -> list[HeldPrefix]:
        caches, size = self._picture.caches, self._block_size
        near = caches.matches(keys)
        if caches.num_tiers == 1:
            return [_held_near(count * size) if count else NOTHING_HELD for count in near]
        host = caches.matches(keys, 1)
        disk = caches.matches(keys, 2) if caches.num_tiers > 2 else host
        return [
            HeldPrefix(a * size, b * size, c * size)
            for a, b, c in zip(near, host, disk, strict=True)
        ]

    def _candidates(
        self, now_s: float, keys: Sequence[bytes], replicas: Sequence[int], names: Sequence[str]
    ) -> list[Candidate]:
        rates, size, age_s = self._rates, self._block_size, self._stale_s
        token_s, capacity, is_exact = rates.prefill_token_s, self._capacity, self._is_exact
        caches, loads = self._picture.caches, self._picture.loads
        held = self._held(keys)
        candidates = []
        for replica in replicas:
            load = loads[replica]
            view = load.look(now_s, token_s, capacity, caches.num_blocks(replica))
            num_own = view.num_running + view.num_waiting if is_exact else load.num_own(now_s)
            # By position: names cost a tenth of a replay.
            candidates.append(
                Candidate(
                    names[replica],
                    view,
                    size,
                    held[replica],
                    num_own,
                    0,
                    0,
                    0,
                    0,
                    rates,
                    1.0,
                    age_s,
                )
            )
        return candidates


def _held_near(num_tokens: int) -> HeldPrefix:
    """There are no tiers behind the accelerator."""
    return HeldPrefix(num_tokens, num_tokens, num_tokens)
