"""Nodes are told what to hold, and no node that is slow, lost or wrong stops the others."""

import asyncio
import logging
from collections.abc import Sequence

import pytest

from autoscaler.plan import ModelPlan, Plan
from cache_tiers.config import NodeCacheConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import NodeWeightsReport, WeightsOrder, WeightsState
from deployments import weight_orders
from deployments.node_rooms import ClusterNode
from deployments.plan_messages import ModelWeights, ServeReport
from deployments.weight_orders import MAX_AGE_S, MAX_PLAN_AGE_S, UNNEEDED_S, WeightOrders

BUNDLE = {"CPU": 1.0}
WEIGHTS = ModelWeights("s3://b/m", {"weights": {"host_bytes": 100}}, None, "ab")


class Cluster:
    """Nodes of one replica each whose caches do at once what they are told."""

    def __init__(self, *nodes: str) -> None:
        self.now_s = 1000.0
        self.all = list(nodes)
        self.held: dict[str, WeightsState] = {}
        self.told: list[tuple[str, WeightsOrder]] = []
        self.failures: dict[str, Exception | str] = {}
        self.slow: set[str] = set()
        self.is_lost = False
        self.orders = WeightOrders(self, clock=lambda: self.now_s)

    async def nodes(self) -> list[ClusterNode]:
        if self.is_lost:
            raise ConnectionError("no GCS")
        return [ClusterNode(each, BUNDLE, BUNDLE) for each in self.all]

    async def order(
        self, node_id: str, config: NodeCacheConfig, orders: Sequence[WeightsOrder]
    ) -> NodeWeightsReport | None:
        assert config.weights is not None
        self.told += [(node_id, order) for order in orders]
        for order in orders:
            failure = self.failures.get(node_id)
            if isinstance(failure, str):
                state = WeightsState(order.model, Rung.COLD, order.rung, failure=failure)
            else:
                before = self.held.get(node_id)
                num_leases = 0 if before is None else before.num_leases
                state = WeightsState(order.model, order.rung, order.rung, num_leases=num_leases)
            self.held[node_id] = state
        return await self.report(node_id)

    async def report(self, node_id: str) -> NodeWeightsReport | None:
        if node_id in self.slow:
            await asyncio.Event().wait()
        failure = self.failures.get(node_id)
        if isinstance(failure, Exception):
            raise failure
        state = self.held.get(node_id)
        if state is None:
            return None
        return NodeWeightsReport(PeerAddress(node_id, 1, b""), 100, 0, (state,))

    async def run(
        self,
        num_staged: int,
        num_on_disk: int = 0,
        *,
        weights: ModelWeights | None = WEIGHTS,
        is_held: bool = False,
        is_dry_run: bool = False,
        passed_s: float = 2.0,
    ) -> list[tuple[str, Rung]]:
        """What was told to whom in this round."""
        self.now_s += passed_s
        model = ModelPlan("m", 1, 0, num_staged, num_on_disk, {}, None, (), "", is_held=is_held)
        plan = Plan(self.now_s, 0.0, 1, 1, (model,), is_dry_run=is_dry_run)
        self.orders.follow(plan, {"m": ServeReport(0.0, 1, 1, 0, 9, BUNDLE, weights)})
        self.told.clear()
        await self.orders.run_once()
        return [(node_id, order.rung) for node_id, order in self.told]


async def test_nodes_are_told_what_the_plan_wants_with_source_and_pins() -> None:
    cluster = Cluster("a", "b", "c")
    told = await cluster.run(1, 1)
    assert sorted(rung for _, rung in told) == [Rung.ON_DISK, Rung.STAGED]
    order = cluster.told[0][1]
    assert (order.model, order.source, order.weights_sha256) == ("m", "s3://b/m", "ab")
    held = cluster.orders.held("m")
    assert held is not None
    assert (held.num_staged, held.num_on_disk, held.num_nodes) == (1, 1, 3)
    assert sorted(each.state.rung for each in cluster.orders.standings()["m"]) == [1, 2]
    # They are repeated, since a cache that nobody wants anything of ends.
    assert sorted(await cluster.run(1, 1)) == sorted(told)


@pytest.mark.parametrize(
    "changes", [{"is_held": True}, {"is_dry_run": True}, {"weights": None}], ids=str
)
async def test_nothing_is_ordered_of_who_is_held_or_has_no_weights(
    changes: dict[str, bool | None],
) -> None:
    assert await Cluster("a").run(1, **changes) == []  # type: ignore[arg-type]


async def test_an_old_plan_orders_nothing() -> None:
    cluster = Cluster("a")
    await cluster.run(1)
    cluster.told.clear()
    cluster.now_s += MAX_PLAN_AGE_S + 1
    await cluster.orders.run_once()
    assert cluster.told == []


async def test_weights_leave_a_node_only_after_a_while_and_are_told_so_once() -> None:
    cluster = Cluster("a")
    await cluster.run(1)
    assert await cluster.run(0) == [("a", Rung.STAGED)]
    assert await cluster.run(0, passed_s=UNNEEDED_S - 3) == [("a", Rung.STAGED)]
    assert await cluster.run(0, passed_s=4) == [("a", Rung.COLD)]
    assert await cluster.run(0) == []


async def test_from_memory_they_go_to_the_disk_where_that_is_wanted() -> None:
    cluster = Cluster("a")
    await cluster.run(1)
    assert await cluster.run(0, 1) == [("a", Rung.STAGED)]
    assert await cluster.run(0, 1, passed_s=UNNEEDED_S) == [("a", Rung.ON_DISK)]


async def test_what_others_ordered_or_replicas_use_is_left_alone() -> None:
    cluster = Cluster("a", "b")
    cluster.held["b"] = WeightsState("m", Rung.STAGED, Rung.STAGED)
    cluster.all = ["a"]
    await cluster.run(1)
    cluster.all = ["a", "b"]
    cluster.held["a"] = WeightsState("m", Rung.STAGED, Rung.STAGED, num_leases=1)
    await cluster.run(0)
    # After a minute without a word of it, nobody knows whether a replica has come.
    assert await cluster.run(0, passed_s=UNNEEDED_S + 1) == [("a", Rung.STAGED)]
    assert await cluster.run(0) == []


async def test_a_lost_cache_is_said_once_and_another_node_takes_its_place(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster("a", "b")
    ((first, _),) = await cluster.run(1)
    other = "b" if first == "a" else "a"
    cluster.failures[first] = ConnectionError("died")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            told = await cluster.run(1)
    assert (other, Rung.STAGED) in told
    assert caplog.text.count("died") == 1
    assert cluster.orders.ready == {"a", "b"}
    await cluster.run(1, passed_s=MAX_AGE_S)
    assert cluster.orders.ready == {other}


async def test_a_node_that_cannot_hold_them_is_said_once_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = Cluster("a", "b")
    cluster.failures = {"a": "no room: raise host_bytes", "b": "no room: raise host_bytes"}
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            await cluster.run(2)
    assert caplog.text.count("node a: weights of m: no room: raise host_bytes") == 1
    held = cluster.orders.held("m")
    assert held is not None
    assert (held.num_staged, held.num_failed) == (0, 2)


async def test_a_slow_node_delays_no_round_and_what_it_holds_gets_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(weight_orders, "WAIT_S", 0.01)
    cluster = Cluster("a", "b")
    await cluster.run(2)
    cluster.slow = {"a"}
    for _ in range(2):
        told = await cluster.run(2)
    assert [node for node, _ in told] == ["b"]
    await cluster.run(2, passed_s=MAX_AGE_S)
    held = cluster.orders.held("m")
    assert held is not None
    assert held.num_staged == 1
    await cluster.orders.close()


async def test_nodes_that_nobody_can_name_are_unknown_not_gone() -> None:
    cluster = Cluster("a")
    assert cluster.orders.held("m") is None
    await cluster.run(1)
    cluster.is_lost = True
    await cluster.run(1)
    held = cluster.orders.held("m")
    assert held is not None
    assert held.num_staged == 1
    await cluster.run(1, passed_s=MAX_AGE_S)
    assert cluster.orders.held("m") is None


async def test_a_cache_section_of_another_shape_orders_nothing() -> None:
    wrong = ModelWeights("s", {"weights": {"host_bytes": -1}})
    assert await Cluster("a").run(1, weights=wrong) == []


async def test_nodes_without_memory_for_weights_hold_them_on_disk() -> None:
    disks = ModelWeights("s3://b/m", {"weights": {}})
    assert [rung for _, rung in await Cluster("a", "b").run(1, weights=disks)] == [Rung.ON_DISK]
