"""Which nodes shall hold a model's weights, and from whom each gets them. Pure.

Nodes form a chain: each asks the ones before it, nearest first, so that all links carry bytes at
once; the source is asked by the first one alone, as long as that lives. Must not know Ray, nor who
wants the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung

MAX_PARENTS = 4
"""Per order: the nearest ones of the chain, and its head."""


@dataclass(frozen=True, slots=True)
class NodeHolding:
    """What one node that could hold a model's weights has of it."""

    node_id: str
    address: PeerAddress | None
    """Where other nodes get them; None: it lends nothing."""
    rung: Rung
    """Reached."""
    wanted: Rung
    """Ordered before; above ``rung``: it is on the way."""
    free_bytes: int
    """Memory for weights that nothing takes."""
    num_done_bytes: int = 0
    """Of a promotion that is under way."""
    num_leases: int = 0
    """Replicas that use it."""


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """What one node is to be ordered."""

    node_id: str
    rung: Rung
    parents: tuple[PeerAddress, ...]
    """Who to ask, nearest first."""


def place(nodes: Sequence[NodeHolding], num_wanted: int, rung: Rung) -> list[NodeOrder]:
    """Orders for at most ``num_wanted`` nodes, in the order of the chain; fewer where there are
    fewer ``nodes``. Nodes that are not in it are left to the caller.

    Chosen first are those that hold the weights on ``rung`` or are on the way there, then those
    that hold them at all, then those with the most free memory. Equal input gives equal output,
    whatever the order of ``nodes``.
    """
    chosen = sorted(nodes, key=lambda node: _preference(node, rung))[: max(0, num_wanted)]
    chain = sorted(chosen, key=_farthest_along)
    orders: list[NodeOrder] = []
    before: list[PeerAddress] = []  # the chain so far, from its head
    for node in chain:
        orders.append(NodeOrder(node.node_id, rung, _parents(before)))
        if node.address is not None:
            before.append(node.address)
    return orders


def _preference(node: NodeHolding, rung: Rung) -> tuple[int, int, int, int, int, str]:
    return (
        -int(min(node.rung, rung)),
        -int(min(node.wanted, rung)),
        -node.num_leases,
        -node.num_done_bytes,
        -node.free_bytes,
        node.node_id,
    )


def _farthest_along(node: NodeHolding) -> tuple[int, int, str]:
    """Who holds it whole comes first, then who has most of it."""
    return (-int(node.rung), -node.num_done_bytes, node.node_id)


def _parents(before: Sequence[PeerAddress]) -> tuple[PeerAddress, ...]:
    nearest = before[: -MAX_PARENTS - 1 : -1]
    if len(before) > MAX_PARENTS:
        nearest = [*nearest[:-1], before[0]]
    return tuple(nearest)
