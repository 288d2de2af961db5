"""Tells the nodes' caches which weights to hold, as the plan says, and remembers what they hold.

Runs beside the rounds of planning and delays none. A node that doesn't answer, or can't do what it
is told, is said once and passed over; what it holds is unknown. Takes back only what it ordered
itself: what a replica or a person asked for stays until room is short. Must not know how caches are
reached, nor how sizes are found.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple, Protocol

import msgspec
from pydantic import ValidationError

from autoscaler.plan import ModelPlan, Plan
from cache_tiers.config import NodeCacheConfig, WeightsConfig
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import NodeWeightsReport, WeightsOrder
from deployments.node_rooms import ClusterNode
from deployments.plan_messages import NodeStanding, ServeReport
from deployments.weight_rooms import Held, ModelNodes, NodeNeed, choose

logger = logging.getLogger("ray.serve")

MAX_PLAN_AGE_S = 10.0
"""Nobody acts on an older one."""
MAX_AGE_S = 15.0
"""What a node said longer ago is unknown."""
WAIT_S = 1.0
"""For all nodes; whoever takes longer is heard in a later round."""
UNNEEDED_S = 60.0
"""Weights leave a node that was not chosen for so long: plans change, and a replica that starts
there has them in use only after some seconds."""


class NodeCaches(Protocol):
    """All of a cluster. Calls raise whatever is wrong with one of them."""

    async def nodes(self) -> Sequence[ClusterNode]: ...

    async def order(
        self, node_id: str, config: NodeCacheConfig, orders: Sequence[WeightsOrder]
    ) -> NodeWeightsReport | None: ...

    async def report(self, node_id: str) -> NodeWeightsReport | None: ...


class _Said(NamedTuple):
    at_s: float
    report: NodeWeightsReport | None


class WeightOrders:
    """Call ``run_once`` every few seconds."""

    def __init__(self, caches: NodeCaches, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.nodes: Sequence[ClusterNode] = ()
        """That were alive lately."""
        self._caches = caches
        self._clock = clock
        self._plan: tuple[float, Plan] | None = None
        self._serve: Mapping[str, ServeReport] = {}
        self._said: dict[str, _Said] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        """Calls by node: who is slow delays nobody else."""
        self._failed: set[str] = set()
        """Nodes that didn't answer last."""
        self._needs: dict[tuple[str, str], NodeNeed] = {}
        """By model and node: what was ordered by us."""
        self._unready: set[str] = set()
        self._seen_s: float | None = None
        self._complaints: dict[tuple[str, str], str] = {}

    @property
    def ready(self) -> frozenset[str]:
        """Nodes that could take weights, or shall take none."""
        return frozenset(node.node_id for node in self.nodes) - self._unready

    def follow(self, plan: Plan | None, serve: Mapping[str, ServeReport]) -> None:
        """``plan``: made now; None: nothing is to be ordered."""
        self._plan = None if plan is None or plan.is_dry_run else (self._clock(), plan)
        self._serve = serve

    def held(self, model: str) -> Held | None:
        """What nodes hold of it; None: unknown."""
        report = self._serve.get(model)
        is_old = self._seen_s is None or self._clock() - self._seen_s > MAX_AGE_S
        if report is None or is_old:
            return None
        return self._model_nodes(model, report).held()

    def standings(self) -> dict[str, list[NodeStanding]]:
        """Each model's nodes that have something of it, or shall have."""
        return {
            model: self._model_nodes(model, report).standings()
            for model, report in self._serve.items()
            if report.weights is not None
        }

    async def run_once(self) -> None:
        """Never raises but when cancelled."""
        try:
            self.nodes = await self._caches.nodes()
        except Exception as error:
            self._complain("", "the cluster's nodes", error)
            return
        self._complaints.pop(("", "the cluster's nodes"), None)
        alive = {node.node_id for node in self.nodes}
        self._forget((self._said.keys() | self._failed) - alive)
        orders, configs = self._orders()
        is_used = any(report.weights is not None for report in self._serve.values())
        for node_id in (alive if is_used else set()) - self._running.keys():
            telling = self._tell(node_id, configs.get(node_id), orders.get(node_id, []))
            self._running[node_id] = asyncio.create_task(telling, name=f"tell {node_id}")
        if self._running:
            await asyncio.wait(self._running.values(), timeout=WAIT_S)
        now_s = self._clock()
        self._unready = {node_id for node_id in orders if now_s - self._said_s(node_id) > MAX_AGE_S}
        self._seen_s = now_s

    async def close(self) -> None:
        """What was ordered stays so."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)

    def _forget(self, gone: Set[str]) -> None:
        for node_id in gone:
            self._said.pop(node_id, None)
            self._failed.discard(node_id)
        for where in [each for each in self._complaints if each[0] in gone]:
            del self._complaints[where]

    def _orders(self) -> tuple[dict[str, list[WeightsOrder]], dict[str, NodeCacheConfig]]:
        """By node, with the cache that it shall have."""
        orders: dict[str, list[WeightsOrder]] = {}
        configs: dict[str, NodeCacheConfig] = {}
        for plan in self._plans():
            report = self._serve.get(plan.model)
            if report is None or report.weights is None or plan.is_held:
                continue
            try:
                config = NodeCacheConfig.model_validate(report.weights.node_cache)
            except ValidationError as error:
                self._complain(plan.model, "node_cache", error)
                continue
            if config.weights is None:
                continue
            for need in self._needed(_with_memory(plan, config.weights), report):
                order = WeightsOrder(
                    plan.model,
                    report.weights.source,
                    need.rung,
                    report.weights.source_sha256,
                    report.weights.weights_sha256,
                    need.parents,
                )
                orders.setdefault(need.node_id, []).append(order)
                configs.setdefault(need.node_id, config)
        return orders, configs

    def _plans(self) -> Sequence[ModelPlan]:
        if self._plan is None or self._clock() - self._plan[0] > MAX_PLAN_AGE_S:
            return ()
        return self._plan[1].models

    def _needed(self, plan: ModelPlan, report: ServeReport) -> list[NodeNeed]:
        """Of the nodes that are chosen, and of those that were and may go down by now."""
        now_s = self._clock()
        nodes = self._model_nodes(plan.model, report)
        needs = {each.node_id: each for each in choose(nodes, plan, now_s)}
        for (model, node_id), before in list(self._needs.items()):
            if model != plan.model:
                continue
            need = needs.get(node_id)
            if node_id not in nodes.by_id:
                del self._needs[model, node_id]
            elif need is None and nodes.by_id[node_id].state.num_leases:
                del self._needs[model, node_id]  # a replica has it in use: it is that one's now
            elif need is None or need.rung < before.rung:
                is_blind = need is None and not nodes.by_id[node_id].is_known
                if is_blind or now_s - before.needed_s <= UNNEEDED_S:
                    needs[node_id] = before
                elif need is None:
                    needs[node_id] = before._replace(rung=Rung.COLD, parents=())
        self._needs |= {(plan.model, node_id): need for node_id, need in needs.items()}
        return list(needs.values())

    async def _tell(
        self, node_id: str, config: NodeCacheConfig | None, orders: Sequence[WeightsOrder]
    ) -> None:
        try:
            if config is None:
                report = await self._caches.report(node_id)
            else:
                report = await self._caches.order(node_id, config, orders)
        except Exception as error:
            self._failed.add(node_id)
            self._complain(node_id, "its cache", error)
            return
        finally:
            del self._running[node_id]
        self._failed.discard(node_id)
        for order in orders:
            if order.rung is Rung.COLD:
                self._needs.pop((order.model, node_id), None)
        self._said[node_id] = _Said(self._clock(), report)
        self._complaints.pop((node_id, "its cache"), None)
        self._note_failures(node_id, report)

    def _note_failures(self, node_id: str, report: NodeWeightsReport | None) -> None:
        for state in () if report is None else report.models:
            what = (node_id, state.model)
            if state.failure is None:
                self._complaints.pop(what, None)
            elif self._complaints.get(what) != state.failure:
                self._complaints[what] = state.failure
                logger.warning("node %s: weights of %s: %s", *what, state.failure)

    def _model_nodes(self, model: str, report: ServeReport) -> ModelNodes:
        """Those that could run a replica, with what they said lately."""
        now_s = self._clock()
        reports = {
            node_id: said.report
            for node_id, said in self._said.items()
            if now_s - said.at_s <= MAX_AGE_S
        }
        has_weights = report.weights is not None
        return ModelNodes.of(
            model, report.bundle, self.nodes, reports, self._failed, has_weights=has_weights
        )

    def _said_s(self, node_id: str) -> float:
        said = self._said.get(node_id)
        return float("-inf") if said is None else said.at_s

    def _complain(self, where: str, what: str, error: Exception) -> None:
        """Once per kind, until it works again."""
        kind = type(error).__name__
        if self._complaints.get((where, what)) != kind:
            lines = str(error).strip().splitlines()
            logger.warning("weights: %s %s: %s: %s", where, what, kind, lines[-1] if lines else "")
        self._complaints[where, what] = kind


def _with_memory(plan: ModelPlan, weights: WeightsConfig) -> ModelPlan:
    """What nodes without memory for weights can do of it."""
    if weights.host_bytes:
        return plan
    num_on_disk = plan.num_staged + plan.num_on_disk
    return msgspec.structs.replace(plan, num_staged=0, num_on_disk=num_on_disk)
