"""Consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, SODA 2018).

Requests of one session go to the first replica clockwise of their hash on a ring of virtual nodes,
or to the next one that has less than ``balance`` times its share of all requests in flight: what
Envoy and HAProxy call a hash balance factor of 125.
"""

from bisect import bisect
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from math import ceil

from app.routing.candidate import Choice, RouteRequest
from engine.seeds import mix64
from simulator.policies.base import Seen

VIRTUAL_NODES = 100
BALANCE = 1.25


def consistent_hash(
    request: RouteRequest, seen: Sequence[Seen], balance: float = BALANCE
) -> Choice:
    """By ``affinity``, and at random without one. ``balance``: > 1; infinity for no bound."""
    counts = [replica.num_requests for replica in seen]
    # With the request that is to be placed, and so at least one replica has room for it.
    share = (sum(counts) + 1) / len(seen)
    limit = ceil(balance * share) if balance != float("inf") else balance
    points, owners = ring(tuple(replica.candidate.engine_id for replica in seen))
    key = mix64(request.rotation if request.affinity is None else request.affinity)
    start = bisect(points, key)
    for step in range(len(points)):
        index = owners[(start + step) % len(points)]
        if counts[index] < limit:
            return Choice(seen[index].candidate)
    raise AssertionError("all replicas have more than their mean")


@lru_cache(maxsize=64)
def ring(engine_ids: tuple[str, ...]) -> tuple[list[int], list[int]]:
    """Hashes in ascending order, and the index of the replica that owns each."""
    points = sorted(
        (int.from_bytes(blake2b(f"{name}:{node}".encode(), digest_size=8).digest()), index)
        for index, name in enumerate(engine_ids)
        for node in range(VIRTUAL_NODES)
    )
    return [point for point, _ in points], [index for _, index in points]
