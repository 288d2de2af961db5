"""The node cache as a Ray actor: one per node, detached, so that it outlives engine replicas.

`ensure` finds or makes the one of a node. It needs no CPU of Ray's accounting and ends itself when
no engine has been connected for a while, and nobody has wanted weights. Its socket lies in a folder
whose name follows from the node's, and so do its secret and its ports: engines and other nodes find
the next cache where the last one was. Must not know what is kept.
"""

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app.fleet_metrics import ScrapeTarget
from cache_tiers.config import NodeCacheConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.node_cache import NodeCache
from cache_tiers.weights.messages import NodeWeightsReport, Stage, WeightsOrder
from deployments.environment import headwater_home, temporary_roots
from deployments.forge_keeper import ForgeKeeper
from deployments.node_cache_metrics import NodeCacheMetrics
from deployments.node_folder import NodeFolder
from deployments.node_identity import NodeIdentity, read_identity, write_identity
from deployments.scrape_server import ScrapeServer
from deployments.weights_host import Reached, WeightsHost, WeightsLease, open_weights
from engine.available_memory import available_memory_bytes

logger = logging.getLogger(__name__)

NAMESPACE = "headwater"
_MIN_SLEEP_S = 0.1


class NodeCachePlace(NamedTuple):
    """Where a node's cache is reached."""

    socket_path: Path
    """By engines of the node."""
    peer: PeerAddress
    """By other nodes' caches."""
    scrape: ScrapeTarget
    forge_socket: Path | None = None
    """Of what forks ranks with their imports done; None: each starts an interpreter of its own."""


class NodeCacheActor:
    """Made by `ensure` only."""

    async def __init__(self, config: NodeCacheConfig, node_id: str) -> None:  # type: ignore[misc]  # awaited
        """Ready once engines can connect. Raises `ArenaError`, `TierError`, `ValueError` or
        `OSError` with what to change.
        """
        self._config = config
        self._others: set[NodeCacheConfig] = set()
        """That were asked for, too."""
        self._folder = NodeFolder(temporary_roots(), node_id)
        self._folder.make()
        self._forge = self._start_forge()  # imports while the rest begins
        host = ray.util.get_node_ip_address()
        identity = read_identity(self._folder.identity_path)
        self._cache = NodeCache(
            config,
            socket_path=self._folder.socket_path,
            host=host,
            secret=identity.secret,
            peer_port=identity.peer_port,
            available_bytes=available_memory_bytes(),
        )
        peer = await self._cache.start()
        self._weights = await self._open_weights(identity, host)
        weights = None if self._weights is None else self._weights.report().address
        collect = tuple if self._weights is None else self._weights.collect
        metrics = NodeCacheMetrics(self._cache.stats, collect)
        self._scrape_server = ScrapeServer(metrics.render, host=host)
        port = await self._scrape_server.start(identity.scrape_port)
        ports = (peer.port, port, 0 if weights is None else weights.port)
        write_identity(self._folder.identity_path, NodeIdentity(peer.secret, *ports))
        target = ScrapeTarget(f"node/{node_id}", "node_cache", host, port)
        forge_socket = None if self._forge is None else self._forge.socket_path
        self._place = NodeCachePlace(self._folder.socket_path, peer, target, forge_socket)
        self._watcher = asyncio.create_task(self._end_when_unused(), name="watch leases")
        logger.info("the cache of node %s listens at %s", node_id, self._folder.socket_path)

    async def find(
        self, config: NodeCacheConfig, lease: WeightsLease | None = None
    ) -> NodeCachePlace:
        """Where it is; of several configurations the first one counts. Renews the lease."""
        if config != self._config and config not in self._others:  # keepers ask every few seconds
            self._others.add(config)
            logger.warning(
                "a model asks for a node cache of another configuration than the one that runs; "
                "all models of a node share one: give them the same node_cache section"
            )
        if lease is not None and self._weights is not None:
            self._weights.lease(lease)
        return self._place

    async def order_weights(self, orders: Sequence[WeightsOrder]) -> NodeWeightsReport | None:
        """What shall stand here, and how it stands now; None: this node's cache holds no weights.
        Whoever wants them to stay repeats it: without orders and replicas the cache ends.
        """
        return None if self._weights is None else self._weights.order(orders)

    async def reach_weights(
        self, order: WeightsOrder, timeout_s: float, lease: WeightsLease | None = None
    ) -> Reached | None:
        """Waits until they are there, can't be had, or the time is over. What is there stays while
        the lease holds. None: this node's cache holds no weights."""
        return None if self._weights is None else await self._weights.reach(order, timeout_s, lease)

    async def release_weights(self, lease: WeightsLease) -> None:
        """A replica leaves."""
        if self._weights is not None:
            self._weights.release(lease)

    async def record_start(self, model: str, stages: Sequence[Stage]) -> None:
        """What a replica's start took on this node."""
        if self._weights is not None:
            self._weights.record_start(model, stages)

    async def report_weights(self) -> NodeWeightsReport | None:
        """None: this node's cache holds no weights."""
        return None if self._weights is None else self._weights.report()

    async def _open_weights(self, identity: NodeIdentity, host: str) -> WeightsHost | None:
        if self._config.weights is None:
            return None
        try:
            return await open_weights(
                self._config.weights,
                home=headwater_home(),
                folder=self._folder.path,
                host=host,
                identity=identity,
            )
        except Exception as error:
            logger.error("the node cache goes on without weights: %s", error)
            return None

    def _start_forge(self) -> ForgeKeeper | None:
        if self._config.weights is None:
            return None
        forge = ForgeKeeper(self._folder.forge_path)
        try:
            forge.start()
        except OSError as error:
            logger.error("the node cache goes on without a forge: %s", error)
            return None
        return forge

    async def _end_when_unused(self) -> None:
        longest_s = self._config.max_idle_s
        idle_s = 0.0
        while idle_s < longest_s:
            await asyncio.sleep(max(_MIN_SLEEP_S, longest_s - idle_s))
            idle_s = self._cache.idle_s
            if self._weights is not None:
                idle_s = min(idle_s, self._weights.idle_s)
        logger.info("nobody has used this node's cache for %.0f s: it ends", idle_s)
        await self._scrape_server.close()
        if self._forge is not None:
            await self._forge.close()
        if self._weights is not None:
            await self._weights.close()
        await self._cache.close()
        self._folder.remove()
        ray.kill(ray.get_runtime_context().current_actor)


def find_actor(node_id: str) -> Any:
    """The handle of the node's cache; None if there is none. Blocks for a call of Ray's."""
    try:
        return ray.get_actor(_name(node_id), namespace=NAMESPACE)
    except ValueError:
        return None


def _name(node_id: str) -> str:
    return f"node-cache/{node_id}"


async def ensure(config: NodeCacheConfig, node_id: str) -> Any:
    """The handle of the node's cache, made if there is none."""
    return (
        ray.remote(NodeCacheActor)
        .options(
            name=_name(node_id),
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote(config, node_id)
    )
