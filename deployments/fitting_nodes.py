"""The nodes of a cluster on which a model's replica fits, and what can be asked of their caches
about its weights.

Must not know what is asked of them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cache_tiers.config import NodeCacheConfig
from cache_tiers.rung import Rung
from cache_tiers.weights.messages import NodeWeightsReport, WeightsOrder, WeightsState
from deployments.config import ModelArgs
from deployments.node_cache_keeper import reason
from deployments.node_rooms import num_fitting
from deployments.weight_placement import NodeHolding
from deployments.weights_host import Reached

CALL_TIMEOUT_S = 30.0
REACH_PERIOD_S = 60.0
"""Of one call that waits for weights."""

FindCache = Callable[[str], Awaitable[Any]]
"""The cache's handle by the node's id; None: there is none."""
EnsureCache = Callable[[NodeCacheConfig, str], Awaitable[Any]]


class CacheUnavailable(Exception):
    """A node's cache can't be asked, or has no weights: one line that says why."""


@dataclass(frozen=True, slots=True)
class FittingNode:
    """One that lives and has, if nothing else ran there, room for a replica."""

    node_id: str
    host: str

    def __str__(self) -> str:
        return f"{self.host} ({self.node_id[:8]})"


def bundle_of(args: ModelArgs) -> dict[str, float]:
    """What one replica reserves."""
    return {"CPU": args.reserved_cpus, "GPU": args.reserved_gpus, **args.resources}


def fitting_nodes(nodes: Iterable[Mapping[str, Any]], args: ModelArgs) -> list[FittingNode]:
    """``nodes``: as `ray.nodes` says."""
    bundle = bundle_of(args)
    fitting = [
        FittingNode(node["NodeID"], node["NodeManagerAddress"])
        for node in nodes
        if node["Alive"] and num_fitting(node["Resources"], bundle)
    ]
    return sorted(fitting, key=lambda node: (node.host, node.node_id))


class NodeCaches:
    """Handles of the caches by their nodes' ids, and calls to them. All methods raise
    `CacheUnavailable`.
    """

    def __init__(self, config: NodeCacheConfig, find: FindCache, ensure: EnsureCache) -> None:
        assert config.weights is not None
        self._config = config
        self._host_bytes = config.weights.host_bytes
        self._find = find
        self._ensure = ensure
        self._actors: dict[str, Any] = {}

    async def make(self, node_id: str) -> None:
        """There is one afterwards, and it runs."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                actor = await self._ensure(self._config, node_id)
                await actor.find.remote(self._config)
        except Exception as error:
            raise CacheUnavailable(f"its cache can't be started: {reason(error)}") from error
        self._actors[node_id] = actor

    async def look(self, node_id: str, model: str) -> NodeHolding:
        """What the node has of a model; nothing where there is no cache."""
        if node_id not in self._actors:
            actor = await self._find(node_id)
            if actor is None:
                return NodeHolding(node_id, None, Rung.COLD, Rung.COLD, self._host_bytes)
            self._actors[node_id] = actor
        report = await self._report(node_id)
        state = _state_of(model, report)
        return NodeHolding(
            node_id,
            report.address,
            state.rung,
            state.wanted,
            max(0, report.host_bytes - report.used_bytes),
            state.num_done_bytes,
            state.num_leases,
        )

    async def state(self, node_id: str, model: str) -> WeightsState:
        return _state_of(model, await self._report(node_id))

    async def order(self, node_id: str, order: WeightsOrder) -> None:
        await self._call(node_id, "order_weights", [order])

    async def reach(self, node_id: str, order: WeightsOrder) -> WeightsState:
        """Returns when the weights are there or can't be had, or after ``REACH_PERIOD_S``."""
        timeout_s = REACH_PERIOD_S + CALL_TIMEOUT_S
        reached: Reached = await self._call(
            node_id, "reach_weights", order, REACH_PERIOD_S, timeout_s=timeout_s
        )
        return reached.state

    async def _report(self, node_id: str) -> NodeWeightsReport:
        report: NodeWeightsReport = await self._call(node_id, "report_weights")
        return report

    async def _call(
        self, node_id: str, method: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S
    ) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                answer = await getattr(self._actors[node_id], method).remote(*arguments)
        except Exception as error:
            raise CacheUnavailable(f"its cache doesn't answer: {reason(error)}") from error
        if answer is None:
            raise CacheUnavailable(
                "its cache runs without weights: of several node_cache sections the first one "
                "counts, give all models of a node the same"
            )
        return answer


def _state_of(model: str, report: NodeWeightsReport) -> WeightsState:
    found = (state for state in report.models if state.model == model)
    return next(found, WeightsState(model, Rung.COLD, Rung.COLD))
