"""The autoscaler's rounds: orders go down, plans are published, and no failure ends them."""

from collections.abc import Sequence
from typing import Any

import msgspec

from app.autoscaling_messages import DemandReport, ModelOrders, ScaleOrders
from autoscaler.config import AutoscalerConfig, ModelScalingConfig
from autoscaler.observation import FleetObservation, ModelObservation, ServeObservation
from autoscaler.plan import Cause, ModelPlan, Plan, PromotionLead
from autoscaler.policy import Decision, KnownLeads, PlannerState
from cache_tiers.config import NodeCacheConfig
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import NodeWeightsReport, WeightsOrder, WeightsState
from deployments.autoscaling_loop import (
    FORGOTTEN_S,
    MAX_SERVE_AGE_S,
    AutoscalingLoop,
    orders_of,
)
from deployments.node_rooms import ClusterNode
from deployments.nodes import NodeRequests
from deployments.plan_holder import PlanHolder
from deployments.plan_messages import Recalled
from deployments.weight_orders import WeightOrders

CONFIG = AutoscalerConfig(models=(ModelScalingConfig(name="m"),))
WEIGHTS = {"source": "s3://b/m", "node_cache": {"weights": {"host_bytes": 100}}}
REPORT = msgspec.msgpack.encode(DemandReport("g", 1.0, ()))


def model_plan(**fields: Any) -> ModelPlan:
    values: dict[str, Any] = {
        "num_serving": 2,
        "num_parked": 1,
        "num_staged": 0,
        "num_on_disk": 0,
        "num_nodes": 3,
        "rungs": {"m/1": Rung.SERVING},
        "next_ready_s": None,
        "causes": (Cause.FORECAST,),
    }
    return ModelPlan("m", reason="", **(values | fields))


class Caches:
    """Of one node with room for two replicas, on which one model is staged."""

    def __init__(self) -> None:
        self.orders: list[WeightsOrder] = []
        self.total: Any = {"CPU": 3.0}

    async def nodes(self) -> list[ClusterNode]:
        return [ClusterNode("n", self.total, {"CPU": 2.0})]

    async def order(
        self, node_id: str, config: NodeCacheConfig, orders: Sequence[WeightsOrder]
    ) -> NodeWeightsReport:
        self.orders += orders
        return await self.report(node_id)

    async def report(self, node_id: str) -> NodeWeightsReport:
        state = WeightsState("m", Rung.STAGED, Rung.STAGED)
        return NodeWeightsReport(None, 100, 10, (state,))


class World:
    """Gateways, holder, planner and Ray as a test wants them."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.answers: Sequence[Any] | Exception = (REPORT,)
        self.holder_is_dead = False
        self.planner_is_broken = False
        self.planned = model_plan()
        self.is_dry_run = False
        self.leads: KnownLeads = {}
        self.orders: list[ScaleOrders] = []
        self.observations: list[FleetObservation] = []
        self.nodes: list[list[dict[str, float]]] = []
        self.caches = Caches()
        self.held = PlanHolder(lambda: self.now_s)
        self.loop = self.start()

    def start(self) -> AutoscalingLoop:
        loop = AutoscalingLoop(
            self.decide,
            self.ask_gateways,
            self,
            NodeRequests(self.request, clock=lambda: self.now_s),
            WeightOrders(self.caches, clock=lambda: self.now_s),
            clock=lambda: self.now_s,
            wall_clock=lambda: 5.0,
        )
        loop.config = CONFIG
        return loop

    def decide(
        self, observation: FleetObservation, state: PlannerState, config: AutoscalerConfig
    ) -> Decision:
        if self.planner_is_broken:
            raise ZeroDivisionError
        self.leads = state.leads
        self.observations.append(observation)
        state.sequence += 1
        plan = Plan(
            observation.now_s,
            observation.local_s,
            state.epoch,
            state.sequence,
            (self.planned,),
            is_dry_run=self.is_dry_run,
        )
        return Decision(plan, state)

    async def ask_gateways(self, orders: bytes) -> Sequence[Any]:
        self.orders.append(msgspec.msgpack.decode(orders, type=ScaleOrders))
        if isinstance(self.answers, Exception):
            raise self.answers
        return self.answers

    async def recall(self) -> bytes:
        self.check_holder()
        return self.held.recall()

    async def publish(self, plan: bytes) -> bytes:
        self.check_holder()
        return self.held.publish(plan)

    def check_holder(self) -> None:
        if self.holder_is_dead:
            raise ConnectionError

    async def request(self, bundles: Sequence[dict[str, float]]) -> None:
        self.nodes.append(list(bundles))

    def seen(self) -> ModelObservation:
        return self.observations[-1].models[0]

    def serve_asks(self) -> int | None:
        return self.held.exchange("m", (3, 2, 0, 9), {"CPU": 1.0}, WEIGHTS)[0]


def recalled(world: World) -> Recalled:
    return msgspec.msgpack.decode(world.held.recall(), type=Recalled)


async def test_the_plan_reaches_serve_and_what_serve_says_the_planner() -> None:
    world = World()
    await world.loop.run_once()
    assert world.seen().serve is None
    assert world.serve_asks() == 3
    await world.loop.run_once()
    await world.loop.run_once()
    assert world.seen().serve == ServeObservation(3, 2, 0, 9)
    world.now_s += MAX_SERVE_AGE_S + 1
    await world.loop.run_once()
    assert world.seen().serve is None


async def test_orders_go_with_the_next_question_and_at_once_if_they_changed() -> None:
    world = World()
    await world.loop.run_once()
    assert [orders.sequence for orders in world.orders] == [0, 1]
    assert world.orders[-1].models == (ModelOrders("m", {"m/1": Rung.SERVING}),)
    await world.loop.run_once()
    assert [orders.sequence for orders in world.orders] == [0, 1, 1]
    world.planned = model_plan(rungs={"m/1": Rung.PARKED})
    await world.loop.run_once()
    assert [orders.sequence for orders in world.orders] == [0, 1, 1, 2, 3]


async def test_the_time_until_the_next_replica_runs_down_between_plans() -> None:
    plan = Plan(100.0, 0.0, 1, 1, (model_plan(next_ready_s=20.0),))
    assert orders_of(plan, 105.0).models[0].next_ready_s == 15.0
    assert orders_of(plan, 130.0).models[0].next_ready_s == 0.0


async def test_a_gateway_that_does_not_answer_makes_demand_unknown() -> None:
    world = World()
    outages: list[Sequence[Any] | Exception] = [
        [REPORT, RuntimeError("died")],
        [REPORT, b"\xff"],
        [],
        TimeoutError(),
    ]
    for answers in outages:
        world.answers = answers
        await world.loop.run_once()
        assert world.seen().demand is None
    assert len(world.observations) == 4


async def test_a_planner_that_fails_leaves_the_last_plan_to_get_old() -> None:
    world = World()
    await world.loop.run_once()
    world.planner_is_broken = True
    world.now_s += 7
    await world.loop.run_once()
    assert world.held.exchange("m", (3, 2, 0, 9), {}) == (3, 7.0)
    world.planner_is_broken = False
    await world.loop.run_once()
    assert world.held.idle_s == 0


async def test_a_holder_that_is_lost_gets_the_next_plan_after_it_is_there_again() -> None:
    world = World()
    await world.loop.run_once()
    world.holder_is_dead = True
    await world.loop.run_once()
    world.holder_is_dead, world.held = False, PlanHolder(lambda: world.now_s)
    await world.loop.run_once()
    assert world.serve_asks() == 3


async def test_nothing_is_planned_before_the_holder_has_said_who_was_before() -> None:
    world = World()
    world.holder_is_dead = True
    await world.loop.run_once()
    assert world.observations == []


async def test_a_later_autoscaler_is_later_even_if_the_wall_clock_is_not() -> None:
    world = World()
    await world.loop.run_once()
    world.held.publish(msgspec.msgpack.encode(Plan(0.0, 0.0, 2**62, 1)))
    restarted = world.start()
    await restarted.run_once()
    assert recalled(world).epoch == 2**62 + 1
    assert world.serve_asks() == 3


async def test_a_dry_run_changes_nothing() -> None:
    world = World()
    world.is_dry_run = True
    await world.loop.run_once()
    assert world.serve_asks() is None
    await world.loop.run_once()
    assert all(not model.rungs for orders in world.orders for model in orders.models)
    assert world.nodes == []


async def test_nodes_are_asked_for_as_soon_as_serve_has_said_what_a_replica_takes() -> None:
    world = World()
    await world.loop.run_once()
    world.serve_asks()
    await world.loop.run_once()
    assert world.nodes == [[{"CPU": 1.0}] * 3]
    world.loop.config = CONFIG.model_copy(update={"request_nodes": False})
    await world.loop.run_once()
    await world.loop.close()
    assert world.nodes[1:] == [[]]


async def test_no_nodes_are_asked_for_a_model_that_is_gone() -> None:
    world = World()
    await world.loop.run_once()
    world.serve_asks()
    await world.loop.run_once()
    world.now_s += FORGOTTEN_S
    await world.loop.run_once()
    assert len(world.nodes[-1]) == 3
    world.now_s += 1
    await world.loop.run_once()
    assert world.nodes[-1] == []


async def test_a_model_that_is_held_gets_no_orders() -> None:
    plan = Plan(0.0, 0.0, 1, 1, (model_plan(is_held=True, next_ready_s=3.0),))
    (orders,) = orders_of(plan, 0.0).models
    assert (orders.rungs, orders.next_ready_s) == ({}, 3.0)


async def test_of_two_autoscalers_the_later_one_plans_and_the_other_gets_blind() -> None:
    world = World()
    await world.loop.run_once()
    world.serve_asks()
    later = world.start()
    world.planned = model_plan(num_serving=5)
    await later.run_once()
    world.planned = model_plan(num_serving=1)
    for _ in range(2):
        world.now_s += MAX_SERVE_AGE_S
        await world.loop.run_once()
    assert world.seen().serve is None
    assert world.held.exchange("m", (3, 2, 0, 9), {}) == (6, 2 * MAX_SERVE_AGE_S)


async def test_an_autoscaler_that_starts_again_knows_how_long_starts_took() -> None:
    world = World()
    world.planned = model_plan(leads=(PromotionLead(Rung.COLD, 31.0, (31.0, 29.0)),))
    await world.loop.run_once()
    await world.start().run_once()
    assert world.leads == {"m": world.planned.leads}


async def test_what_nodes_hold_is_planned_with_and_what_the_plan_wants_is_ordered() -> None:
    world = World()
    world.planned = model_plan(num_staged=1)
    await world.loop.run_once()
    assert (world.seen().num_nodes_staged, world.seen().num_nodes) == (None, None)
    world.serve_asks()
    await world.loop.run_once()
    await world.loop.look_at_nodes()
    assert [(each.source, each.rung) for each in world.caches.orders] == [("s3://b/m", Rung.STAGED)]
    await world.loop.run_once()
    seen = world.seen()
    assert (seen.num_nodes_staged, seen.num_nodes_on_disk) == (2, 0)
    assert (seen.num_nodes, seen.num_nodes_failed) == (3, 0)
    await world.loop.close()


async def test_a_dry_run_orders_no_weights_either() -> None:
    world = World()
    world.planned, world.is_dry_run = model_plan(num_staged=1), True
    await world.loop.run_once()
    world.serve_asks()
    await world.loop.run_once()
    await world.loop.look_at_nodes()
    assert world.caches.orders == []


async def test_an_autoscaler_that_starts_again_knows_how_long_nodes_took() -> None:
    world = World()
    world.held.publish(msgspec.msgpack.encode(Plan(0.0, 0.0, 1, 1, node_times_s=(90.0,))))
    await world.loop.run_once()
    assert world.observations[-1].node_times_s == (90.0,)


async def test_nodes_of_another_shape_end_nothing() -> None:
    world = World()
    await world.loop.run_once()
    world.serve_asks()
    await world.loop.run_once()
    world.caches.total = None
    await world.loop.look_at_nodes()
    await world.loop.run_once()
    assert world.seen().num_nodes_staged is None
    world.caches.total = {"CPU": 3.0}
    await world.loop.look_at_nodes()
    await world.loop.run_once()
    assert world.seen().num_nodes_staged == 2
