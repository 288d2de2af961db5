"""The gateway as a Serve deployment: HTTP from Serve's proxies, engine addresses from discovery.

Serve hands every HTTP request to the ASGI app of `app.server`, and the gateway's configuration to
`reconfigure`, at the start and again whenever `user_config` changes, without a restart. A model is
followed by the name of its application; until that exists the model has no engines ("loading").
"""

import asyncio
import gc
import logging
from typing import Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from app.config import GatewayConfig
from app.gateway import Gateway
from app.membership import EngineAddress
from app.server import create_asgi_app
from deployments.advertisement import Advertisement
from deployments.discovery import follow_engines
from deployments.edge import DropServesRequestId, RefuseUnwatched
from deployments.loopback import bind_replica_to_loopback
from deployments.replica_board import Listener, Replica, replica_board

logger = logging.getLogger("ray.serve")


@serve.ingress()
class GatewayReplica:
    """Bound by `deployments.build` with its options."""

    async def __init__(self) -> None:  # type: ignore[misc]  # Serve awaits it
        bind_replica_to_loopback()
        self._loop = asyncio.get_running_loop()
        self._node_id: str = ray.get_runtime_context().get_node_id()
        self._gateway = Gateway(GatewayConfig())
        self._handles: dict[str, DeploymentHandle[Any]] = {}

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Serve asks for the app once, after the constructor."""
        app = create_asgi_app(self._gateway)
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

    async def __del__(self) -> None:
        """Serve calls this when the last open request is answered."""
        for model in list(self._handles):
            self._unfollow(model)
        await self._gateway.close()

    def _follow(self, models: set[str]) -> None:
        for model in self._handles.keys() - models:
            self._unfollow(model)
        for model in models - self._handles.keys():
            replica_board.follow(model, self._listener(model))
            self._handles[model] = follow_engines(model)

    def _unfollow(self, model: str) -> None:
        replica_board.unfollow(model)
        del self._handles[model]

    def _listener(self, model: str) -> Listener:
        def on_replicas(replicas: tuple[Replica, ...]) -> None:
            # Serve's router has an event loop of its own, unless told to share ours.
            self._loop.call_soon_threadsafe(self._set_engines, model, replicas)

        return on_replicas

    def _set_engines(self, model: str, replicas: tuple[Replica, ...]) -> None:
        if model in self._handles:
            addresses = (self._to_address(replica) for replica in replicas)
            known = {address.engine_id: address for address in addresses if address is not None}
            self._gateway.set_engines(model, known)

    def _to_address(self, replica: Replica) -> EngineAddress | None:
        """None for a replica that doesn't say where it listens: the others must not suffer."""
        try:
            engine = Advertisement.from_metadata(replica.metadata)
        except ValueError as error:
            logger.warning("a replica on node %s is not reachable: %s", replica.node_id, error)
            return None
        endpoint = engine.seen_from(is_same_node=replica.node_id == self._node_id)
        return EngineAddress(engine.engine_id, endpoint, engine.secret)
