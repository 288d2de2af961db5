"""Weights are brought to nodes in a chain, followed until they are there, and sent away."""

import asyncio
from typing import Any

import pytest

from cache_tiers.config import NodeCacheConfig, WeightsConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import NodeWeightsReport, WeightsOrder, WeightsState
from deployments.config import ModelArgs
from deployments.fitting_nodes import FittingNode, NodeCaches, fitting_nodes
from deployments.weight_warming import Warmed, Warming
from deployments.weights_host import Reached

ARGS = ModelArgs(
    name="m",
    source="s3://bucket/m",
    weights_sha256="a" * 64,
    num_cpus=0,
    node_cache=NodeCacheConfig(weights=WeightsConfig(host_bytes=100)),
)
NODES = [FittingNode(name, f"10.0.0.{number}") for number, name in enumerate("abc")]


def address(name: str) -> PeerAddress:
    return PeerAddress(name, 7000, b"secret")


class Cache:
    """A node's, as an actor's handle: each method is its own ``.remote``."""

    def __init__(self, cluster: "Cluster", name: str, state: WeightsState | None = None) -> None:
        self.cluster, self.name = cluster, name
        self.state = state or WeightsState("m", Rung.COLD, Rung.COLD)
        self.host_bytes = 100

    def __getattr__(self, method: str) -> Any:
        return type("Method", (), {"remote": staticmethod(getattr(self, f"on_{method}"))})

    async def on_find(self, config: NodeCacheConfig) -> None:
        assert config == ARGS.node_cache

    async def on_report_weights(self) -> NodeWeightsReport | None:
        if self.host_bytes == 0:
            return None
        return NodeWeightsReport(address(self.name), self.host_bytes, 0, (self.state,))

    async def on_order_weights(self, orders: list[WeightsOrder]) -> NodeWeightsReport | None:
        [order] = orders
        self.cluster.orders.append((self.name, order))
        failure = self.cluster.failures.get(self.name)
        rung = self.state.rung if failure else order.rung
        if self.state.num_leases:
            rung = max(rung, self.state.rung)
        self.state = WeightsState(
            "m", rung, order.rung, "r", num_bytes=7, num_leases=self.state.num_leases,
            failure=failure,
        )  # fmt: skip
        return await self.on_report_weights()

    async def on_reach_weights(self, order: WeightsOrder, timeout_s: float) -> Reached:
        return Reached(self.state, self.state)


class Cluster:
    def __init__(self) -> None:
        self.caches: dict[str, Cache] = {}
        self.broken: set[str] = set()
        self.orders: list[tuple[str, WeightsOrder]] = []
        self.failures: dict[str, str] = {}
        self.shown: list[tuple[FittingNode, WeightsState]] = []

    def hold(self, name: str, rung: Rung, *, num_leases: int = 0) -> None:
        state = WeightsState("m", rung, rung, "r", num_bytes=7, num_leases=num_leases)
        self.caches[name] = Cache(self, name, state)

    async def find(self, name: str) -> Cache | None:
        return self.caches.get(name)

    async def ensure(self, config: NodeCacheConfig, name: str) -> Cache:
        if name in self.broken:
            raise OSError("a long account\nthe node is gone")
        return self.caches.setdefault(name, Cache(self, name))

    def warming(self) -> Warming:
        assert ARGS.node_cache is not None
        caches = NodeCaches(ARGS.node_cache, self.find, self.ensure)

        def show(node: FittingNode, state: WeightsState) -> None:
            self.shown.append((node, state))

        return Warming(ARGS, NODES, caches, show, period_s=0.001)

    @property
    def ordered(self) -> list[tuple[str, Rung, tuple[PeerAddress, ...]]]:
        return [(name, order.rung, order.parents) for name, order in self.orders]


def outcomes(warmed: list[Warmed]) -> dict[str, str | None]:
    return {each.node.node_id: each.failure for each in warmed}


async def test_nodes_are_ordered_in_a_chain_that_begins_with_who_holds_it() -> None:
    cluster = Cluster()
    cluster.hold("c", Rung.STAGED)
    warmed = await cluster.warming().warm(3, Rung.STAGED)
    assert outcomes(warmed) == {"a": None, "b": None, "c": None}
    assert cluster.ordered == [
        ("c", Rung.STAGED, ()),
        ("a", Rung.STAGED, (address("c"),)),
        ("b", Rung.STAGED, (address("a"), address("c"))),
    ]
    assert {order.weights_sha256 for _, order in cluster.orders} == {"a" * 64}
    assert {state.rung for _, state in cluster.shown} == {Rung.STAGED}


async def test_caches_are_made_only_where_weights_shall_be() -> None:
    cluster = Cluster()
    await cluster.warming().warm(1, Rung.ON_DISK)
    assert list(cluster.caches) == ["a"]
    assert cluster.ordered == [("a", Rung.ON_DISK, ())]


async def test_a_node_that_can_not_have_them_fails_alone() -> None:
    cluster = Cluster()
    cluster.failures["b"] = "no room: raise host_bytes"
    warmed = await cluster.warming().warm(2, Rung.STAGED)
    assert outcomes(warmed) == {"a": None, "b": "no room: raise host_bytes"}


async def test_a_node_without_a_cache_fails_alone_and_is_nobodys_parent() -> None:
    cluster = Cluster()
    cluster.broken.add("a")
    warmed = await cluster.warming().warm(2, Rung.STAGED)
    assert outcomes(warmed) == {"a": "its cache can't be started: the node is gone", "b": None}
    assert cluster.ordered == [("b", Rung.STAGED, ())]


async def test_a_cache_that_runs_without_weights_fails_alone() -> None:
    cluster = Cluster()
    cluster.hold("a", Rung.COLD)
    cluster.caches["a"].host_bytes = 0
    warmed = await cluster.warming().warm(3, Rung.STAGED)
    failures = outcomes(warmed)
    assert (failures["b"], failures["c"]) == (None, None)
    assert str(failures["a"]).startswith("its cache runs without weights")


async def test_cooling_orders_those_that_hold_them_and_starts_nothing() -> None:
    cluster = Cluster()
    cluster.hold("b", Rung.STAGED)
    warmed = await cluster.warming().cool(3)
    assert outcomes(warmed) == {"b": None}
    assert cluster.ordered == [("b", Rung.COLD, ())]
    assert list(cluster.caches) == ["b"]


async def test_who_is_not_used_cools_first() -> None:
    cluster = Cluster()
    cluster.hold("a", Rung.STAGED, num_leases=2)
    cluster.hold("b", Rung.STAGED)
    assert outcomes(await cluster.warming().cool(1)) == {"b": None}


async def test_weights_that_replicas_use_stay_until_these_leave() -> None:
    cluster = Cluster()
    cluster.hold("a", Rung.STAGED, num_leases=2)
    [warmed] = await cluster.warming().cool(1)
    assert warmed.failure == (
        "still in memory, 2 replicas use it: it leaves by itself when nobody does"
    )


async def test_warming_goes_on_as_long_as_they_are_on_their_way() -> None:
    cluster = Cluster()
    coming = WeightsState("m", Rung.COLD, Rung.STAGED, num_bytes=7, num_done_bytes=3)
    there = WeightsState("m", Rung.STAGED, Rung.STAGED, "r", num_bytes=7)

    class Slow(Cache):
        async def on_reach_weights(self, order: WeightsOrder, timeout_s: float) -> Reached:
            await asyncio.sleep(0.01)
            before, self.state = self.state, there if self.state is coming else coming
            return Reached(before, self.state)

    cluster.caches["a"] = Slow(cluster, "a")
    cluster.failures["a"] = ""  # its order leaves it as it is
    [warmed] = await cluster.warming().warm(1, Rung.STAGED)
    assert warmed.failure is None
    assert sorted({s.num_done_bytes or s.num_bytes for _, s in cluster.shown}) == [3, 7]


def test_only_nodes_that_live_and_have_room_for_a_replica_fit() -> None:
    def ray_node(name: str, *, alive: bool = True, **resources: float) -> dict[str, Any]:
        total = {"CPU": 4.0, **resources}
        return {"NodeID": name, "NodeManagerAddress": "h", "Alive": alive, "Resources": total}

    nodes = [
        ray_node("a", accel=1),
        ray_node("b"),
        ray_node("c", accel=1, alive=False),
        ray_node("d", accel=2),
    ]
    args = ARGS.model_copy(update={"resources": {"accel": 1.0}})
    assert [node.node_id for node in fitting_nodes(nodes, args)] == ["a", "d"]
    assert [node.node_id for node in fitting_nodes(nodes, ARGS)] == ["a", "b", "d"]


@pytest.mark.parametrize("rung", [Rung.ON_DISK, Rung.STAGED])
async def test_repeating_it_orders_the_same(rung: Rung) -> None:
    cluster = Cluster()
    await cluster.warming().warm(2, rung)
    first, cluster.orders = cluster.ordered, []
    await cluster.warming().warm(2, rung)
    assert cluster.ordered == first
