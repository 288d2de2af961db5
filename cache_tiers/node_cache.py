"""A node's whole cache: arena, tiers, hierarchy, its socket for engines and its port for nodes.

Composition only. Must not know Ray, nor who decides that it ends.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cache_tiers.arena import Arena, has_huge_pages
from cache_tiers.config import NodeCacheConfig
from cache_tiers.disk.files import Files
from cache_tiers.disk.scratch import Scratch
from cache_tiers.disk.stats import DiskStats
from cache_tiers.disk_tier import DiskTier
from cache_tiers.messages import PeerAddress
from cache_tiers.node_lender import NodeLender
from cache_tiers.node_service import KEY_STRIDE, NodeService, NodeServiceStats
from cache_tiers.node_store import NodeStore
from cache_tiers.object_tier import ObjectLimits, ObjectStats, ObjectTier
from cache_tiers.peer.messages import PeerLimits
from cache_tiers.peer_server import PeerServer, PeerServerStats
from cache_tiers.peer_tier import PeerTier
from cache_tiers.store_stats import NodeStoreStats
from cache_tiers.tier import TierError

logger = logging.getLogger(__name__)

_TICK_PERIOD_S = 0.25
_SWITCH_INTERVAL_S = 0.0002
"""By Python's 5 ms a thread that has read some MiB would wait for the loop as long as that took."""
_CLOSING_S = 5.0
"""A device that hangs may never let go."""


@dataclass(frozen=True, slots=True)
class NodeCacheStats:
    """Of each part; ``None`` for what is not configured, or could not be had."""

    store: NodeStoreStats
    engines: NodeServiceStats
    peers: PeerServerStats
    disk: DiskStats | None
    object_store: ObjectStats | None


@dataclass(frozen=True, slots=True)
class _Parts:
    """What is there while the cache runs."""

    disk: DiskTier | None
    object_store: ObjectTier | None
    store: NodeStore
    service: NodeService
    server: PeerServer


class NodeCache:
    """Call order: ``start`` once, ``close``; on one event loop."""

    def __init__(
        self,
        config: NodeCacheConfig,
        *,
        socket_path: Path,
        host: str,
        secret: bytes,
        peer_port: int = 0,
        available_bytes: int | None = None,
    ) -> None:
        """``host``: this node's address for others, who prove to know ``secret``; ``peer_port``:
        where they look, if it is free. ``available_bytes``: as of ``Arena``.
        """
        self._config = config
        self._socket_path = socket_path
        self._host = host
        self._secret = secret
        self._peer_port = peer_port
        self._available_bytes = available_bytes
        self._parts: _Parts | None = None
        self._closing = AsyncExitStack()
        """In the reverse order of making: who uses memory before whose it is."""

    async def start(self) -> PeerAddress:
        """Serve; where other nodes find this one. Raises ``ArenaError``, ``TierError`` or
        ``OSError`` if engines can't be served; goes on without a tier that can't be had.

        The process is taken to be the cache's own: Python's threads switch more often from now on.
        """
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        async with self._closing as closing:
            arena = Arena(self._config.host_bytes, available_bytes=self._available_bytes)
            closing.callback(arena.close)
            disk = await self._open_disk(closing)
            object_store = await self._open_object_store(closing)
            store = NodeStore(
                arena,
                disk=disk,
                object_store=object_store,
                config=self._config,
                clock=time.monotonic,
                key_stride=KEY_STRIDE,
            )
            closing.push_async_callback(store.close)
            service = NodeService(store, arena, self._socket_path, self._make_peer)
            closing.push_async_callback(service.close)
            await service.start()
            lender = NodeLender(store, service)
            server = PeerServer(lender, self._host, self._secret, port=self._peer_port)
            closing.push_async_callback(server.close)
            await server.start()
            closing.push_async_callback(_cancel, asyncio.create_task(_tick(store)))
            self._parts = _Parts(disk, object_store, store, service, server)
            self._closing = closing.pop_all()
        return server.address

    @property
    def idle_s(self) -> float:
        """How long no engine has been connected."""
        return self._running.service.idle_s

    def stats(self) -> NodeCacheStats:
        parts = self._running
        return NodeCacheStats(
            store=parts.store.stats(),
            engines=parts.service.stats(),
            peers=parts.server.stats,
            disk=parts.disk.stats() if parts.disk is not None else None,
            object_store=parts.object_store.stats if parts.object_store is not None else None,
        )

    async def close(self) -> None:
        """Cut engines and other nodes. Idempotent; disks stay warm."""
        await self._closing.aclose()

    @property
    def _running(self) -> _Parts:
        assert self._parts is not None, "the node cache was not started"
        return self._parts

    def _make_peer(self, address: PeerAddress) -> PeerTier:
        return PeerTier(address, PeerLimits(timeout_s=self._config.load_timeout_s))

    async def _open_disk(self, closing: AsyncExitStack) -> DiskTier | None:
        if not self._config.disks:
            return None
        try:
            # Without huge pages a device is slow to fill the arena itself.
            scratch = None if has_huge_pages() else Scratch()
            disk = await DiskTier.open(
                self._config.disks, make_files=partial(Files, scratch=scratch)
            )
        except TierError as error:
            logger.error("the node cache goes on without disks: %s", error)
            return None
        closing.push_async_callback(_within, _CLOSING_S, disk.close)
        return disk

    async def _open_object_store(self, closing: AsyncExitStack) -> ObjectTier | None:
        if self._config.object_store is None:
            return None
        limits = ObjectLimits(load_timeout_s=self._config.load_timeout_s)
        try:
            object_store = await ObjectTier.open(self._config.object_store, limits=limits)
        except TierError as error:
            logger.error("the node cache goes on without its object store: %s", error)
            return None
        closing.push_async_callback(object_store.close)
        return object_store


async def _within(seconds: float, close: Callable[[], Coroutine[None, None, None]]) -> None:
    task = asyncio.create_task(close())
    done, _ = await asyncio.wait([task], timeout=seconds)
    if not done:
        logger.error("a disk did not answer for %.0f s: it is left as it is", seconds)
    for each in done:
        each.result()


async def _tick(store: NodeStore) -> None:
    while True:
        await asyncio.sleep(_TICK_PERIOD_S)
        try:
            await store.tick()
        except Exception:
            logger.exception("moving images between tiers failed")


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
