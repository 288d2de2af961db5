"""The autoscaler as a Serve deployment of one replica, in the gateway's application.

Nothing depends on its being there: while it is lost or starts again, every size stays as it is, and
what it knew of demand is learned anew. Its configuration is its `user_config`, so that a change
restarts nothing. It serves its metrics on a port of its own, like a gateway, and its last decisions
beside them.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import ray
from pydantic import ValidationError
from ray import serve

from app.fleet_metrics import ScrapeTarget
from autoscaler.config import AutoscalerConfig
from autoscaler.policy import decide
from deployments.autoscaler_metrics import AutoscalerMetrics
from deployments.autoscaling_loop import AutoscalingLoop
from deployments.discovery import follow_gateways
from deployments.gateway_targets import to_metadata
from deployments.loopback import bind_replica_to_loopback
from deployments.node_cache_client import NodeCacheClient
from deployments.nodes import NodeRequests
from deployments.plan_holder import ensure_plan_holder
from deployments.plan_messages import DECISIONS_PATH, DEFAULT_DECISIONS, WEIGHTS_PATH, Decided
from deployments.scrape_server import ScrapeServer
from deployments.weight_orders import WeightOrders

logger = logging.getLogger("ray.serve")

PERIOD_S = 1.0
NODES_PERIOD_S = 2.0
ASK_TIMEOUT_S = 2.0
"""For all gateways together; a large fleet's answers hold thousands of engines."""
HOLDER_TIMEOUT_S = 5.0


class AutoscalerReplica:
    """Bound by `deployments.build` with its options."""

    async def __init__(self, gateway_deployment: str) -> None:  # type: ignore[misc]  # Serve awaits
        bind_replica_to_loopback()
        context = serve.get_replica_context()
        self._gateways = follow_gateways(gateway_deployment, context.app_name)
        self._is_configured = False
        self._holder = _Holder()
        self._weights = WeightOrders(NodeCacheClient())
        self._loop = AutoscalingLoop(
            decide, self._ask_gateways, self._holder, NodeRequests(), self._weights
        )
        host = ray.util.get_node_ip_address()
        self._scrape_server = ScrapeServer(
            AutoscalerMetrics(self._loop).render,
            host=host,
            pages={DECISIONS_PATH: self._explain, WEIGHTS_PATH: self._show_weights},
        )
        port = await self._scrape_server.start()
        name = f"{context.app_name}/{context.replica_id.unique_id}"
        self._target = ScrapeTarget(name, "autoscaler", host, port)
        self._task = asyncio.create_task(self._run(self._loop.run_once, PERIOD_S), name="autoscale")
        self._nodes_task = asyncio.create_task(
            self._run(self._loop.look_at_nodes, NODES_PERIOD_S), name="look at nodes"
        )

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Take over a new configuration. An invalid one ends the start; later it is refused in the
        log and the metrics, since Serve would end a replica that raises, and nobody would plan.
        """
        try:
            self._loop.config = AutoscalerConfig.model_validate(user_config)
        except ValidationError as error:
            if not self._is_configured:
                raise
            logger.error("the new configuration is wrong, the last one stays in force: %s", error)
            self._loop.is_config_refused = True
        else:
            self._is_configured = True
            self._loop.is_config_refused = False

    async def scrape_target(self) -> dict[str, Any]:
        """Where its metrics are served; gateways ask."""
        return to_metadata(self._target)

    async def check_health(self) -> None:
        """Raises if the rounds have ended, which only an error of ours does."""
        for task in (self._task, self._nodes_task):
            if task.done():
                raise RuntimeError(f"the autoscaler has stopped: {task.exception()!r}")

    async def __del__(self) -> None:
        """Serve awaits it. The plan stays with its holder, and gets old."""
        tasks = {self._task, self._nodes_task}
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await self._loop.close()
        await self._scrape_server.close()

    async def _run(self, run_once: Callable[[], Awaitable[None]], period_s: float) -> None:
        clock = asyncio.get_running_loop().time
        next_s = clock()
        while True:
            await run_once()
            next_s = max(next_s + period_s, clock())
            await asyncio.sleep(next_s - clock())

    async def _explain(self, query: Mapping[str, str]) -> bytes:
        decided = await self._holder.explain(int(query.get("last", DEFAULT_DECISIONS)))
        return msgspec.json.encode(msgspec.msgpack.decode(decided, type=dict[str, list[Decided]]))

    async def _show_weights(self, query: Mapping[str, str]) -> bytes:
        return msgspec.json.encode(self._weights.standings())

    async def _ask_gateways(self, orders: bytes) -> list[Any]:
        asked = self._gateways.broadcast("exchange", orders)
        answers: list[Any] = await asked.results_async(
            timeout_s=ASK_TIMEOUT_S, return_exceptions=True
        )
        return answers


class _Holder:
    """The named actor, found or made at the first call and again after one that failed."""

    def __init__(self) -> None:
        self._actor: Any = None

    async def recall(self) -> bytes:
        return bytes(await self._call("recall"))

    async def publish(self, plan: bytes) -> bytes:
        return bytes(await self._call("publish", plan))

    async def explain(self, last: int) -> bytes:
        return bytes(await self._call("explain", last))

    async def _call(self, method: str, *args: Any) -> Any:
        if self._actor is None:
            self._actor = await asyncio.to_thread(ensure_plan_holder)
        try:
            async with asyncio.timeout(HOLDER_TIMEOUT_S):
                return await getattr(self._actor, method).remote(*args)
        except Exception:
            self._actor = None
            raise
