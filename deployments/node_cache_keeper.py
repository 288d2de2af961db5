"""An engine replica's watch over its node's cache: made at the start, or later if that fails, and
again if it is lost.

The engine finds it by itself, at a path that follows from the node's. Must not know what a cache
keeps.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from cache_tiers.config import NodeCacheConfig
from deployments.node_cache import NodeCachePlace, ensure
from deployments.weights_host import WeightsLease

logger = logging.getLogger("ray.serve")

START_TIMEOUT_S = 30.0
"""The replica waits no longer; until the cache is there, it computes."""
WATCH_PERIOD_S = 5.0
LEASE_S = 3 * WATCH_PERIOD_S
"""Weights that a replica uses are its for so long after it was heard of last."""
_MOST_PERIODS = 12
"""Between attempts to make a cache that can't be made: each starts a process."""


class NodeCacheKeeper:
    """Call order: ``start``, ``close``."""

    actor: Any = None
    """The cache's handle; None: it could not be had when it was looked for last."""
    lease: WeightsLease | None = None
    """Renewed as long as it stands here."""

    def __init__(
        self,
        config: NodeCacheConfig,
        node_id: str,
        *,
        ensure: Callable[[NodeCacheConfig, str], Awaitable[Any]] = ensure,
        period_s: float = WATCH_PERIOD_S,
    ) -> None:
        self._config = config
        self._node_id = node_id
        self._ensure = ensure
        self._period_s = period_s
        self._watcher: asyncio.Task[None] | None = None

    async def start(self) -> NodeCachePlace | None:
        """Where the cache is; None, with a line of the log, where none could be started yet: until
        there is one, the engine computes what it would have loaded.
        """
        place, num_failed = None, 0
        try:
            place = await self._find()
        except Exception as error:
            num_failed = 1
            logger.error(
                "node %s has no cache yet, until then KV is computed again instead of loaded: %s",
                self._node_id,
                reason(error),
            )
        self._watcher = asyncio.create_task(self._watch(num_failed), name="watch node cache")
        return place

    async def close(self) -> None:
        """The cache stays, for the next replica."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})

    async def _find(self) -> NodeCachePlace:
        async with asyncio.timeout(START_TIMEOUT_S):
            actor = await self._ensure(self._config, self._node_id)
            place: NodeCachePlace = await actor.find.remote(self._config, self.lease)
            self.actor = actor
            return place

    async def _watch(self, num_failed: int) -> None:
        """``num_failed``: attempts so far, since there was a cache."""
        while True:
            await asyncio.sleep(self._period_s * min(max(1, num_failed), _MOST_PERIODS))
            try:
                await self._find()
            except Exception as error:
                self.actor = None
                if not num_failed:
                    logger.warning("node %s lost its cache: %s", self._node_id, reason(error))
                num_failed += 1
            else:
                if num_failed:
                    logger.info("node %s has its cache now", self._node_id)
                num_failed = 0


def reason(error: Exception) -> str:
    """The last line: those before are Ray's account of where it happened."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__
