"""The gateway as a Serve deployment: HTTP from Serve's proxies, engine addresses from discovery.

Serve hands every HTTP request to the ASGI app of `app.server`, and the gateway's configuration to
`reconfigure`, at the start and again whenever `user_config` changes, without a restart. A model is
followed by the name of its application; until that exists the model has no engines ("loading").
Each gateway serves its own metrics on a port of its own, too, and tells the others where. The
autoscaler, where there is one, asks each of them what it saw and hands it orders for its engines.
"""

import asyncio
import gc
import logging
from typing import Any, Literal

import msgspec
import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from app.autoscaling_messages import ScaleOrders
from app.config import GatewayConfig
from app.fleet_metrics import FleetMetrics, ScrapeTarget
from app.gateway import Gateway
from app.membership import EngineAddress
from app.server import create_asgi_app, create_router_app
from deployments.advertisement import Advertisement
from deployments.discovery import follow_engines, follow_gateways
from deployments.edge import DropServesRequestId, RefuseUnwatched
from deployments.fleet_scraper import FleetScraper
from deployments.gateway_targets import ASK_TIMEOUT_S, GatewayTargets, to_metadata
from deployments.loopback import bind_replica_to_loopback
from deployments.replica_board import Listener, Replica, replica_board
from deployments.scrape_server import ScrapeServer

logger = logging.getLogger("ray.serve")


@serve.ingress()
class GatewayReplica:
    """Bound by `deployments.build` with its options."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self,
        router: Literal["embedded", "standalone"],
        autoscaler: DeploymentHandle[Any] | None = None,
    ) -> None:
        self._create_app = create_router_app if router == "standalone" else create_asgi_app
        bind_replica_to_loopback()
        self._loop = asyncio.get_running_loop()
        self._node_id: str = ray.get_runtime_context().get_node_id()
        context = serve.get_replica_context()
        rank = context.rank.rank
        # Routers and gateways that know the same replicas count from both ends.
        self._gateway = Gateway(GatewayConfig(), rank=rank if router == "embedded" else -1 - rank)
        self._handles: dict[str, DeploymentHandle[Any]] = {}
        host = ray.util.get_node_ip_address()
        self._scrape_server = ScrapeServer(self._gateway.render_metrics, host=host)
        port = await self._scrape_server.start()
        name = f"{context.app_name}/{context.replica_id.unique_id}"
        self._target = ScrapeTarget(name, "gateway", host, port)
        self._askable = [follow_gateways(context.deployment, context.app_name)]
        if autoscaler is not None:
            self._askable.append(autoscaler.options(stream=False))
        self._scraper = FleetScraper(GatewayTargets(self._target, self._ask_gateways))

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Serve asks for the app once, after the constructor."""
        metrics = FleetMetrics(self._target.replica, self._gateway.render_metrics, self._scraper)
        app = self._create_app(self._gateway, metrics)
        app.add_middleware(DropServesRequestId)
        app.add_middleware(RefuseUnwatched)
        # What is imported by now stays: looking through it at every collection stops all streams
        # for tens of milliseconds.
        gc.collect()
        gc.freeze()
        return app

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Take over a new configuration; raises for an invalid one and keeps the old one then."""
        config = GatewayConfig.model_validate(user_config)
        self._gateway.reconfigure(config)
        self._follow({route.name for route in config.models})

    async def scrape_target(self) -> dict[str, Any]:
        """Where this gateway serves its own metrics; other gateways ask."""
        return to_metadata(self._target)

    async def exchange(self, orders: bytes) -> bytes:
        """The autoscaler's `ScaleOrders` against this gateway's `DemandReport`, in msgpack."""
        self._gateway.take_orders(msgspec.msgpack.decode(orders, type=ScaleOrders))
        return msgspec.msgpack.encode(self._gateway.demand_report())

    async def __del__(self) -> None:
        """Serve calls this when the last open request is answered."""
        for model in list(self._handles):
            self._unfollow(model)
        await self._scraper.close()
        await self._scrape_server.close()
        await self._gateway.close()

    async def _ask_gateways(self) -> list[Any]:
        asked = [handle.broadcast("scrape_target") for handle in self._askable]
        answers = await asyncio.gather(
            *(
                each.results_async(timeout_s=ASK_TIMEOUT_S, return_exceptions=True)
                for each in asked
            ),
            return_exceptions=True,
        )
        return [
            item
            for each in answers
            for item in ([each] if isinstance(each, BaseException) else each)
        ]

    def _follow(self, models: set[str]) -> None:
        for model in self._handles.keys() - models:
            self._unfollow(model)
        for model in models - self._handles.keys():
            replica_board.follow(model, self._listener(model))
            self._handles[model] = follow_engines(model)

    def _unfollow(self, model: str) -> None:
        replica_board.unfollow(model)
        del self._handles[model]
        self._scraper.set_engines(model, ())

    def _listener(self, model: str) -> Listener:
        def on_replicas(replicas: tuple[Replica, ...]) -> None:
            # Serve's router has an event loop of its own, unless told to share ours.
            self._loop.call_soon_threadsafe(self._set_engines, model, replicas)

        return on_replicas

    def _set_engines(self, model: str, replicas: tuple[Replica, ...]) -> None:
        if model in self._handles:
            addresses: dict[str, EngineAddress] = {}
            targets: list[ScrapeTarget] = []
            for replica in replicas:
                # One that doesn't say where it listens must not make the others suffer.
                try:
                    engine = Advertisement.from_metadata(replica.metadata)
                except ValueError as error:
                    logger.warning("a replica on %s is not reachable: %s", replica.node_id, error)
                    continue
                endpoint = engine.seen_from(is_same_node=replica.node_id == self._node_id)
                addresses[engine.engine_id] = EngineAddress(
                    engine.engine_id, endpoint, engine.secret
                )
                targets += filter(None, (engine.scrape, engine.node_scrape))
            num_gateways = serve.get_replica_context().world_size
            self._gateway.set_engines(model, addresses, num_gateways)
            self._scraper.set_engines(model, targets)
