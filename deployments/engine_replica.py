"""An engine replica as a Serve deployment: placement, health, drain and rollout of `EngineFront`.

The replica's process imports no torch: the front starts the step loop in a process of its own.
Requests reach the front over `wire`, never through Serve; metrics have a port of their own.

Gateways find a replica by the metadata it records: where it listens, and the secret that a
connection must prove to know. The secret is random and made here, one per replica, because that
needs no configuration, differs for every replica and is gone with it. It travels from replica to
controller to gateways inside Ray's control plane, where whoever can listen can already run code on
every node; Serve shows replica metadata neither in its REST interface nor in its logs.
"""

import asyncio
import logging
import secrets
import time
from functools import partial
from typing import Any, NamedTuple

import ray
from ray import serve

from app.fleet_metrics import ScrapeTarget
from deployments.advertisement import Advertisement
from deployments.config import ModelArgs
from deployments.engine_loss import leave_when_lost
from deployments.environment import headwater_home, temporary_roots
from deployments.loopback import bind_replica_to_loopback
from deployments.node_cache import NodeCachePlace
from deployments.node_cache_keeper import NodeCacheKeeper
from deployments.node_folder import NodeFolder
from deployments.private_dir import PrivateDir
from deployments.replica_weights import Brought, ReplicaWeights
from deployments.scrape_server import ScrapeServer
from deployments.successors import SuccessorWatch, has_successor
from engine.config import EngineSpec
from engine.front import EngineFront
from engine.model_card import Node
from engine.start_stages import StageClock, describe

logger = logging.getLogger("ray.serve")

SECRET_BYTES = 32
MAX_SOCKET_DIR_BYTES = 70
"""Leaves room for the socket's name below the kernel's limit of 104 to 108 bytes."""


class _Engine(NamedTuple):
    """What a replica runs."""

    engine_id: str
    spec: EngineSpec
    node: Node


class EngineReplica:
    """Bound by `deployments.build` with its options."""

    async def __init__(self, args: ModelArgs) -> None:  # type: ignore[misc]  # Serve awaits it
        """Ready once the model is loaded and warm.

        Raises `CheckpointError` or `EngineStartError`, whose last line Serve puts into the status
        of the application.
        """
        asked_s, stages = time.monotonic(), StageClock()
        self._front: EngineFront | None = None
        self._keeper: NodeCacheKeeper | None = None
        self._weights: ReplicaWeights | None = None
        bind_replica_to_loopback()
        node_id = ray.get_runtime_context().get_node_id()
        engine_id = f"{args.name}/{serve.get_replica_context().replica_id.unique_id}"
        place = None
        try:
            if args.node_cache is not None:
                self._keeper = NodeCacheKeeper(args.node_cache, node_id)
                place = await self._keeper.start()
                stages.end("node_cache")
            self._weights = ReplicaWeights(args, self._keeper, engine_id, home=headwater_home())
            brought = await self._weights.bring()
            stages.end(brought.stage, brought.num_bytes)
            spec = _spec(args, brought, place, node_id)
            node = Node(node_id, None if place is None else place.peer)
            await self._start(_Engine(engine_id, spec, node), place, asked_s, stages)
        except BaseException:
            await self._leave_node()
            raise
        self._hand_over_after_s = args.engine.hand_over_after_s

    async def _start(
        self, engine: _Engine, place: NodeCachePlace | None, asked_s: float, stages: StageClock
    ) -> None:
        """Load the model and listen."""
        secret = secrets.token_bytes(SECRET_BYTES)
        socket_dir = PrivateDir(temporary_roots(), max_bytes=MAX_SOCKET_DIR_BYTES)
        host = ray.util.get_node_ip_address()
        front = EngineFront(
            engine.spec,
            engine_id=engine.engine_id,
            secret=secret,
            host=host,
            unix_dir=socket_dir.path,
            node=engine.node,
        )
        scrape_server = ScrapeServer(front.render_metrics, host=host)
        try:
            endpoint = await front.start(asked_s=asked_s, before=stages.stages)
            scrape_port = await scrape_server.start()
        except BaseException:
            await front.close()
            socket_dir.remove()
            raise
        self._front, self._socket_dir, self._scrape_server = front, socket_dir, scrape_server
        target = ScrapeTarget(engine.engine_id, "engine", host, scrape_port)
        self._advertisement = Advertisement(
            engine.engine_id, endpoint, secret, target, None if place is None else place.scrape
        )
        logger.info(
            "engine %s listens at %s, started from %s: %s",
            engine.engine_id,
            endpoint,
            engine.spec.started_from.name,
            describe(front.start_stages),
        )
        self._watcher = asyncio.create_task(
            leave_when_lost(engine.engine_id, front, socket_dir), name="watch engine"
        )
        assert self._weights is not None
        await self._weights.record_start(front.start_stages)

    def record_replica_metadata(self) -> dict[str, Any]:
        """What gateways need to connect; Serve asks once, when the replica is ready."""
        return self._advertisement.to_metadata()

    async def check_health(self) -> None:
        """Raises when the engine is lost, in the short time until the replica leaves."""
        assert self._front is not None  # Serve asks replicas that are ready
        self._front.check_health()

    async def __del__(self) -> None:
        """Serve awaits this with every socket alive: finish what runs, take nothing new, leave.

        Also for a replica whose constructor failed, which has nothing left to end.
        """
        if self._front is None:
            return
        self._watcher.cancel()  # `drain` notices the loss of the engine itself
        try:
            context = serve.get_replica_context()
            ask = partial(has_successor, context.app_name, context.deployment)
            async with SuccessorWatch(ask) as successor:
                await self._front.drain(
                    hand_over_after_s=self._hand_over_after_s,
                    has_replacement=lambda: successor.is_known,
                )
        finally:
            await self._scrape_server.close()
            await self._front.close()
            await self._leave_node()
            self._socket_dir.remove()

    async def _leave_node(self) -> None:
        if self._weights is not None:
            await self._weights.release()
        if self._keeper is not None:
            await self._keeper.close()


def _spec(
    args: ModelArgs, brought: Brought, place: NodeCachePlace | None, node_id: str
) -> EngineSpec:
    spec = EngineSpec(
        model=args.name,
        checkpoint=brought.checkpoint,
        weights_sha256=args.weights_sha256,
        config=args.engine,
        started_from=brought.started_from,
        forge_socket=None if place is None else place.forge_socket,
    )
    if args.node_cache is None:
        return spec
    folder = NodeFolder(temporary_roots(), node_id)  # of a cache that may be yet to come
    cache = {
        "node_cache_socket": folder.socket_path if place is None else place.socket_path,
        "load_timeout_s": args.node_cache.load_timeout_s,
    }
    return spec.model_copy(update=cache)
