"""One round of the autoscaler after the other: ask the gateways, plan, publish, pass orders on.

Whatever fails, the round is skipped or goes on without it, and sizes stay as they are: Serve's
policy holds them when plans get old. Must not know how anybody is reached.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import msgspec

from app.autoscaling_messages import DemandReport, ModelOrders, ScaleOrders
from autoscaler.config import AutoscalerConfig
from autoscaler.observation import FleetObservation, ModelObservation, ServeObservation
from autoscaler.plan import Plan
from autoscaler.policy import Decision, PlannerState
from deployments.demand_reports import DemandReports
from deployments.nodes import NodeRequests
from deployments.plan_messages import Recalled, ServeReport
from deployments.weight_orders import WeightOrders

logger = logging.getLogger("ray.serve")

MAX_SERVE_AGE_S = 10.0
"""What Serve's controller said is unknown after that."""
FORGOTTEN_S = 300.0
"""After that the model is gone, and nodes for it are no longer asked for."""
_NO_ORDERS = ScaleOrders(epoch=0, sequence=0)

Decide = Callable[[FleetObservation, PlannerState, AutoscalerConfig], Decision]
AskGateways = Callable[[bytes], Awaitable[Sequence[Any]]]
"""Orders against each gateway's report, or the exception that its call ended with."""


class Holder(Protocol):
    """The plan holder, wherever it is."""

    async def recall(self) -> bytes: ...

    async def publish(self, plan: bytes) -> bytes: ...


class AutoscalingLoop:
    """Call ``run_once`` about once a second."""

    def __init__(
        self,
        decide: Decide,
        ask_gateways: AskGateways,
        holder: Holder,
        nodes: NodeRequests,
        weights: WeightOrders,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = AutoscalerConfig()
        self.is_config_refused = False
        """A newer one is wrong."""
        self.observation: FleetObservation | None = None
        self.plan: Plan | None = None
        self._decide = decide
        self._ask_gateways = ask_gateways
        self._holder = holder
        self._nodes = nodes
        self._weights = weights
        self._clock = clock
        self._wall_clock = wall_clock
        self._reports = DemandReports()
        self._state: PlannerState | None = None
        self._serve: dict[str, tuple[float, ServeReport]] = {}
        """When Serve said it, on our clock."""
        self._complaints: dict[str, str] = {}

    async def run_once(self) -> None:
        """Never raises but when cancelled."""
        try:
            state = self._state or await self._start()
        except Exception as error:
            return self._complain("the plan holder", error)
        answers = await self._exchange(self._orders())
        try:
            self.observation = self._observe(answers)
            decision = self._decide(self.observation, state, self.config)
        except Exception as error:
            return self._complain("planning", error)
        self._complaints.pop("planning", None)
        before, self.plan, self._state = self._orders(), decision.plan, decision.state
        await self._publish(decision.plan)
        if rungs_of(self._orders()) != rungs_of(before):
            await self._exchange(self._orders())  # a replica that shall wake need not wait
        await self._ask_for_nodes(decision.plan)
        return None

    async def look_at_nodes(self) -> None:
        """Beside the rounds, every few seconds: tells nodes which weights to hold, and sees what
        they hold. Never raises but when cancelled."""
        try:
            await self._weights.run_once()
            self._nodes.see(self._weights.nodes, self._weights.ready)
        except Exception as error:
            return self._complain("nodes", error)
        self._complaints.pop("nodes", None)
        return None

    async def close(self) -> None:
        """Takes back what was asked for and doesn't end with us."""
        await self._weights.close()
        await self._nodes.ask(None, {})

    async def _start(self) -> PlannerState:
        before = msgspec.msgpack.decode(await self._holder.recall(), type=Recalled)
        self._complaints.pop("the plan holder", None)
        # Larger than before even if the wall clock was set back.
        epoch = max(time.time_ns(), before.epoch + 1)
        self._state = PlannerState.new(epoch, before.leads)
        self._nodes.leads.recall(before.node_times_s)
        return self._state

    async def _exchange(self, orders: ScaleOrders) -> list[DemandReport | None]:
        try:
            answers = await self._ask_gateways(msgspec.msgpack.encode(orders))
        except Exception as error:
            self._complain("gateways", error)
            return []
        reports: list[DemandReport | None] = []
        for answer in answers:
            try:
                if isinstance(answer, BaseException):
                    raise answer
                reports.append(msgspec.msgpack.decode(answer, type=DemandReport))
            except Exception as error:
                self._complain("gateways", error)
                reports.append(None)
        if None not in reports:
            self._complaints.pop("gateways", None)
        return reports

    def _observe(self, answers: Sequence[DemandReport | None]) -> FleetObservation:
        now_s = self._clock()
        seen = self._reports.observe(
            answers,
            self._serve_observations(now_s),
            self.config,
            now_s=now_s,
            local_s=self._wall_clock(),
        )
        models = tuple(self._with_nodes(model) for model in seen.models)
        return replace(seen, models=models, node_times_s=self._nodes.leads.times_s)

    def _with_nodes(self, model: ModelObservation) -> ModelObservation:
        held = self._weights.held(model.model)
        if held is None:
            return model
        return replace(
            model,
            num_nodes_staged=held.num_staged,
            num_nodes_on_disk=held.num_on_disk,
            num_nodes=held.num_nodes,
            num_nodes_failed=held.num_failed,
        )

    def _orders(self) -> ScaleOrders:
        return _NO_ORDERS if self.plan is None else orders_of(self.plan, self._clock())

    def _serve_observations(self, now_s: float) -> dict[str, ServeObservation]:
        return {
            model: ServeObservation(
                report.target_num_replicas,
                report.num_running,
                report.min_replicas,
                report.max_replicas,
            )
            for model, (said_s, report) in self._serve.items()
            if now_s - said_s <= MAX_SERVE_AGE_S
        }

    async def _publish(self, plan: Plan) -> None:
        try:
            encoded = await self._holder.publish(msgspec.msgpack.encode(plan))
        except Exception as error:
            return self._complain("the plan holder", error)
        self._complaints.pop("the plan holder", None)
        now_s = self._clock()
        reports = msgspec.msgpack.decode(encoded, type=dict[str, ServeReport])
        self._serve = {
            model: (now_s - report.age_s, report)
            for model, report in reports.items()
            if report.age_s <= FORGOTTEN_S
        }
        self._weights.follow(plan, self._reports_of_serve())
        return None

    def _reports_of_serve(self) -> dict[str, ServeReport]:
        return {model: report for model, (_, report) in self._serve.items()}

    async def _ask_for_nodes(self, plan: Plan) -> None:
        bundles = {model: report.bundle for model, report in self._reports_of_serve().items()}
        is_asking = self.config.request_nodes and not plan.is_dry_run
        await self._nodes.ask(plan if is_asking else None, bundles)

    def _complain(self, what: str, error: BaseException) -> None:
        """Once per kind, until it works again."""
        kind = type(error).__name__
        if self._complaints.get(what) != kind:
            logger.warning("autoscaler: %s: %r: sizes stay as they are", what, error)
        self._complaints[what] = kind


def orders_of(plan: Plan, now_s: float) -> ScaleOrders:
    """What gateways pass on; models that are held get no orders."""
    age_s = now_s - plan.made_s
    models = tuple(
        ModelOrders(
            model.model,
            {} if model.is_held or plan.is_dry_run else model.rungs,
            None if model.next_ready_s is None else max(0.0, model.next_ready_s - age_s),
        )
        for model in plan.models
    )
    return ScaleOrders(plan.epoch, plan.sequence, models)


def rungs_of(orders: ScaleOrders) -> Mapping[str, Mapping[str, int]]:
    """Who shall stand where, without what changes from second to second."""
    return {model.model: model.rungs for model in orders.models if model.rungs}
