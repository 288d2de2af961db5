"""The node cache as a Ray actor: one per node, detached, so that it outlives engine replicas.

`ensure` finds or makes the one of a node. It needs no CPU of Ray's accounting and ends itself when
no engine has been connected for a while. Its socket lies in a folder whose name follows from
the node's, and so do its secret and its ports: engines and other nodes find the next cache where
the last one was. Must not know what is kept.
"""

import asyncio
import logging
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from app.fleet_metrics import ScrapeTarget
from cache_tiers.config import NodeCacheConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.node_cache import NodeCache
from deployments.environment import temporary_roots
from deployments.node_cache_metrics import NodeCacheMetrics
from deployments.node_folder import NodeFolder
from deployments.node_identity import NodeIdentity, read_identity, write_identity
from deployments.scrape_server import ScrapeServer
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
        metrics = NodeCacheMetrics(self._cache.stats)
        self._scrape_server = ScrapeServer(metrics.render, host=host)
        port = await self._scrape_server.start(identity.scrape_port)
        write_identity(self._folder.identity_path, NodeIdentity(peer.secret, peer.port, port))
        target = ScrapeTarget(f"node/{node_id}", "node_cache", host, port)
        self._place = NodeCachePlace(self._folder.socket_path, peer, target)
        self._watcher = asyncio.create_task(self._end_when_unused(), name="watch leases")
        logger.info("the cache of node %s listens at %s", node_id, self._folder.socket_path)

    async def find(self, config: NodeCacheConfig) -> NodeCachePlace:
        """Where it is; of several configurations the first one counts."""
        if config != self._config and config not in self._others:  # keepers ask every few seconds
            self._others.add(config)
            logger.warning(
                "a model asks for a node cache of another configuration than the one that runs; "
                "all models of a node share one: give them the same node_cache section"
            )
        return self._place

    async def _end_when_unused(self) -> None:
        longest_s = self._config.max_idle_s
        idle_s = 0.0
        while idle_s < longest_s:
            await asyncio.sleep(max(_MIN_SLEEP_S, longest_s - idle_s))
            idle_s = self._cache.idle_s
        logger.info("no engine has used this node's cache for %.0f s: it ends", idle_s)
        await self._scrape_server.close()
        await self._cache.close()
        self._folder.remove()
        ray.kill(ray.get_runtime_context().current_actor)


async def ensure(config: NodeCacheConfig, node_id: str) -> Any:
    """The handle of the node's cache, made if there is none."""
    return (
        ray.remote(NodeCacheActor)
        .options(
            name=f"node-cache/{node_id}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        .remote(config, node_id)
    )
