"""Which nodes hold one model's weights, with how much room for its replicas; and which ones shall
hold them, so that the replicas of a plan find them where they start. Pure.

A plan counts in replicas: a node with room for three does for three.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

from autoscaler.plan import ModelPlan
from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import NodeWeightsReport, WeightsState
from deployments.node_rooms import ClusterNode, Resources, num_fitting
from deployments.plan_messages import NodeStanding
from deployments.weight_placement import MAX_PARENTS, NodeHolding, NodeOrder, place


class Held(NamedTuple):
    """As in ``ModelObservation``."""

    num_staged: int | None
    num_on_disk: int | None
    num_nodes: int
    num_failed: int | None


class NodeNeed(NamedTuple):
    """What one node is to be told."""

    node_id: str
    rung: Rung
    parents: tuple[PeerAddress, ...]
    needed_s: float
    """When it was chosen last."""


@dataclass(frozen=True, slots=True)
class ModelNode:
    """One that could run a replica."""

    node_id: str
    num_fitting: int
    """Replicas, if nothing else ran there."""
    num_rooms: int
    """Replicas, now."""
    is_failing: bool
    """It doesn't answer, or can't do what it was told."""
    is_known: bool
    """It answered lately."""
    state: WeightsState
    address: PeerAddress | None
    free_bytes: int

    @property
    def holding(self) -> NodeHolding:
        """One that fails isn't on its way."""
        state = self.state
        return NodeHolding(
            self.node_id,
            self.address,
            state.rung,
            state.rung if self.is_failing else state.wanted,
            self.free_bytes,
            state.num_done_bytes,
            state.num_leases,
        )


@dataclass(frozen=True, slots=True)
class ModelNodes:
    """Of one model."""

    by_id: Mapping[str, ModelNode]
    has_weights: bool
    """Caches hold them."""

    @classmethod
    def of(
        cls,
        model: str,
        bundle: Resources,
        nodes: Sequence[ClusterNode],
        reports: Mapping[str, NodeWeightsReport | None],
        failed: Set[str],
        *,
        has_weights: bool,
    ) -> "ModelNodes":
        """``reports``: of nodes that answered lately; ``failed``: of those that don't any more."""
        found = {}
        for node in nodes:
            num = num_fitting(node.total, bundle)
            if num > 0:
                rooms = min(num, num_fitting(node.available, bundle))
                report = reports.get(node.node_id)
                is_silent = node.node_id in failed
                found[node.node_id] = _node(model, node.node_id, num, rooms, report, is_silent)
        return cls(found, has_weights)

    def held(self) -> Held:
        """What replicas that start now find."""
        nodes = self.by_id.values()
        num_nodes = sum(node.num_fitting for node in nodes)
        if not self.has_weights:
            return Held(None, None, num_nodes, None)
        num_failed = sum(node.is_failing for node in nodes)
        rooms = {
            rung: sum(node.num_rooms for node in nodes if node.state.rung is rung)
            for rung in (Rung.STAGED, Rung.ON_DISK)
        }
        return Held(rooms[Rung.STAGED], rooms[Rung.ON_DISK], num_nodes, num_failed)

    def standings(self) -> list[NodeStanding]:
        return [
            NodeStanding(node.node_id, node.state, node.num_rooms)
            for node in self.by_id.values()
            if max(node.state.rung, node.state.wanted) > Rung.COLD or node.state.failure
        ]


def choose(nodes: ModelNodes, plan: ModelPlan, now_s: float) -> list[NodeNeed]:
    """Nodes with room for the replicas that may come, STAGED first, each rung as a chain of its
    own. Those that fail come last."""
    candidates = [node for node in nodes.by_id.values() if node.num_rooms > 0]
    staged = _chosen(candidates, plan.num_staged, Rung.STAGED)
    taken = {order.node_id for order in staged}
    left = [node for node in candidates if node.node_id not in taken]
    on_disk = _chosen(left, plan.num_on_disk, Rung.ON_DISK)
    orders = [*staged, *on_disk]
    holders = _holders(nodes, {order.node_id for order in orders})
    # Disks may have it from whoever gets it into memory first.
    heads = [address for each in staged[:1] if (address := nodes.by_id[each.node_id].address)]
    return [
        NodeNeed(
            order.node_id,
            order.rung,
            _parents(nodes, order, [*holders, *(heads if at >= len(staged) else [])], at),
            now_s,
        )
        for at, order in enumerate(orders)
    ]


def _chosen(candidates: Sequence[ModelNode], num_replicas: int, rung: Rung) -> list[NodeOrder]:
    sound = [node for node in candidates if not node.is_failing]
    orders = _covering(sound, num_replicas, rung)
    num_found = _num_rooms(sound, orders)
    if num_found < num_replicas:
        failing = [node for node in candidates if node.is_failing]
        orders += _covering(failing, num_replicas - num_found, rung)
    return orders


def _covering(nodes: Sequence[ModelNode], num_replicas: int, rung: Rung) -> list[NodeOrder]:
    """The fewest of the order of preference that have room for so many, or all."""
    holdings = [node.holding for node in nodes]
    low, high = 0, min(len(nodes), max(0, num_replicas))
    while low < high:
        middle = (low + high) // 2
        if _num_rooms(nodes, place(holdings, middle, rung)) >= num_replicas:
            high = middle
        else:
            low = middle + 1
    return place(holdings, low, rung)


def _num_rooms(nodes: Sequence[ModelNode], orders: Sequence[NodeOrder]) -> int:
    chosen = {order.node_id for order in orders}
    return sum(node.num_rooms for node in nodes if node.node_id in chosen)


def _holders(nodes: ModelNodes, chosen: Set[str]) -> list[PeerAddress]:
    """Other nodes that hold the weights whole, as those do on which replicas run."""
    return [
        node.address
        for node in nodes.by_id.values()
        if node.address is not None
        and node.node_id not in chosen
        and node.state.rung > Rung.COLD
        and not node.is_failing
    ]


def _parents(
    nodes: ModelNodes, order: NodeOrder, holders: Sequence[PeerAddress], at: int
) -> tuple[PeerAddress, ...]:
    """Those of the chain first; then holders, each node beginning with another one."""
    own = nodes.by_id[order.node_id].address
    turn = at % len(holders) if holders else 0
    others = [each for each in (*holders[turn:], *holders[:turn]) if each != own]
    return tuple(dict.fromkeys((*order.parents, *others)))[:MAX_PARENTS]


def _node(
    model: str,
    node_id: str,
    num: int,
    rooms: int,
    report: NodeWeightsReport | None,
    is_silent: bool,
) -> ModelNode:
    state = WeightsState(model, Rung.COLD, Rung.COLD)
    address, free_bytes = None, 0
    if report is not None:
        state = next((each for each in report.models if each.model == model), state)
        address, free_bytes = report.address, report.host_bytes - report.used_bytes
    is_failing = is_silent or (state.failure is not None and state.rung < state.wanted)
    return ModelNode(
        node_id, num, rooms, is_failing, report is not None, state, address, free_bytes
    )
