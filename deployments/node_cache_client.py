"""Node caches as the autoscaler reaches them: by their actors' names, each within a time.

A cache that can't be reached is found anew the next time. Must not know what is ordered, nor why.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from cache_tiers.config import NodeCacheConfig
from cache_tiers.weights.messages import NodeWeightsReport, WeightsOrder
from deployments.node_cache import ensure, find_actor
from deployments.node_rooms import ClusterNode

CALL_TIMEOUT_S = 5.0
START_TIMEOUT_S = 30.0
"""Of a cache that is not there yet."""
FIND_PERIOD_S = 20.0
"""Between two looks for a cache that nobody orders anything of."""


class NodeCacheClient:
    """Handles of the caches of a cluster."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._actors: dict[str, Any] = {}
        self._sought_s: dict[str, float] = {}

    async def nodes(self) -> list[ClusterNode]:
        """Those that are alive. Raises what Ray raises."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            nodes = await asyncio.to_thread(_alive_nodes)
        for kept in (self._actors, self._sought_s):
            for gone in kept.keys() - {node.node_id for node in nodes}:
                del kept[gone]
        return nodes

    async def order(
        self, node_id: str, config: NodeCacheConfig, orders: Sequence[WeightsOrder]
    ) -> NodeWeightsReport | None:
        """As the actor says; it is made if there is none. Raises what Ray raises."""
        is_known = node_id in self._actors
        async with asyncio.timeout(CALL_TIMEOUT_S if is_known else START_TIMEOUT_S):
            if not is_known:
                self._actors[node_id] = await ensure(config, node_id)
            return await self._call(node_id, "order_weights", list(orders))

    async def report(self, node_id: str) -> NodeWeightsReport | None:
        """None where there is no cache, or none that holds weights."""
        async with asyncio.timeout(CALL_TIMEOUT_S):
            if node_id not in self._actors and not await self._find(node_id):
                return None
            return await self._call(node_id, "report_weights")

    async def _find(self, node_id: str) -> bool:
        now_s = self._clock()
        if now_s - self._sought_s.get(node_id, -FIND_PERIOD_S) < FIND_PERIOD_S:
            return False
        self._sought_s[node_id] = now_s
        actor = await asyncio.to_thread(find_actor, node_id)
        if actor is not None:
            self._actors[node_id] = actor
        return actor is not None

    async def _call(self, node_id: str, method: str, *args: Any) -> NodeWeightsReport | None:
        actor = self._actors[node_id]
        try:
            report: NodeWeightsReport | None = await getattr(actor, method).remote(*args)
        except BaseException:
            # A time that is over is such an exception, too.
            self._actors.pop(node_id, None)
            raise
        return report


def _alive_nodes() -> list[ClusterNode]:
    # Ray offers what is available of the cluster as a whole, but not of each node.
    from ray._private.state import available_resources_per_node

    available = available_resources_per_node()
    return [
        ClusterNode(node["NodeID"], node["Resources"], available.get(node["NodeID"], {}))
        for node in ray.nodes()
        if node["Alive"]
    ]
