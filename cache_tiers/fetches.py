"""The fetches of one connection: those under way, and the leases of those that were answered.

An id is used once, and ids rise, so that a ``Cancel`` that crosses its ``Fetched`` is known from
one that was never asked for. Must not know frames.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple

from cache_tiers.block_image import ImageLayout
from cache_tiers.engine_claims import ProtocolViolation
from cache_tiers.image_store import ImageStore
from cache_tiers.keys import BlockKey
from cache_tiers.messages import Cancel, Fetch, Fetched, Found, Loaded
from cache_tiers.peer_pool import PeerPool
from cache_tiers.tier import TierError

logger = logging.getLogger(__name__)

MAX_FETCHES = 4096
"""Under way or leased on one connection: many more prompts than an engine lets wait inside."""


class _Answer(NamedTuple):
    """What stands in the ``Fetched`` of a fetch."""

    images: list[Found]
    predicted_s: float
    fetch_s: float


_NOTHING = _Answer([], 0.0, 0.0)


class Fetches:
    """Owner of one engine's leases."""

    def __init__(
        self,
        store: ImageStore,
        layout: ImageLayout,
        peers: PeerPool,
        answer: Callable[[Fetched], None],
    ) -> None:
        self._store = store
        self._layout = layout
        self._peers = peers
        self._answer = answer
        self._last_id: int | None = None
        self._running: dict[int, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """Those in ``_running``, and those that were cancelled and aren't done yet."""
        self._leased: dict[int, list[Found]] = {}

    def __len__(self) -> int:
        """That the engine has not heard of or not let go."""
        return len(self._running) + len(self._leased)

    def start(self, fetch: Fetch) -> None:
        """Answer when there is something to say. Raises ``ProtocolViolation``."""
        if self._last_id is not None and fetch.fetch_id <= self._last_id:
            raise ProtocolViolation(f"fetch id {fetch.fetch_id} after {self._last_id}")
        if len(self) >= MAX_FETCHES:
            raise ProtocolViolation(f"more than {MAX_FETCHES} fetches at a time")
        self._last_id = fetch.fetch_id
        task = asyncio.create_task(self._run(fetch))
        self._running[fetch.fetch_id] = task
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, cancel: Cancel) -> None:
        """End the fetch and its leases. Raises ``ProtocolViolation``."""
        self._check_known(cancel.fetch_id)
        task = self._running.pop(cancel.fetch_id, None)
        if task is not None:
            task.cancel()
        self._release(self._leased.pop(cancel.fetch_id, []))

    def take_loaded(self, loaded: Loaded) -> None:
        """End a fetch's leases and believe what is said of it. Raises ``ProtocolViolation``."""
        self._check_known(loaded.fetch_id)
        if loaded.fetch_id in self._running:
            raise ProtocolViolation(f"fetch {loaded.fetch_id} is loaded before it was answered")
        images = self._leased.pop(loaded.fetch_id, [])
        foreign = set(loaded.bad_keys) - {image.key for image in images}
        self._release(images)
        if foreign or loaded.num_images > len(images):
            raise ProtocolViolation(f"fetch {loaded.fetch_id} did not bring what was loaded")
        self._store.record_load(self._layout, loaded)
        for key in loaded.bad_keys:
            self._store.discard(self._layout, BlockKey(key))

    def end(self) -> None:
        """Cancel and release all."""
        self._running.clear()
        for task in self._tasks:
            task.cancel()
        for images in self._leased.values():
            self._release(images)
        self._leased.clear()

    async def wait_ended(self) -> None:
        """After ``end``: return when the tiers have let go of the memory, too."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, fetch: Fetch) -> None:
        images, predicted_s, fetch_s = await self._bring(fetch)
        # Nothing is awaited from here on: a cancellation finds the leases with the store, or here.
        if self._running.pop(fetch.fetch_id, None) is None:  # cancelled too late for the store
            self._release(images)
            return
        if images:
            self._leased[fetch.fetch_id] = images
        self._answer(Fetched(fetch.fetch_id, images, predicted_s, fetch_s))

    async def _bring(self, fetch: Fetch) -> _Answer:
        try:
            peer = self._peers.get(fetch.peer) if fetch.peer is not None else None
            outcome = await self._store.fetch(self._layout, fetch, peer)
        except TierError as error:
            logger.warning("a fetch brought nothing: %s", error)
            return _NOTHING
        except Exception:
            logger.exception("a fetch failed; the engine computes instead")
            return _NOTHING
        return _Answer(list(outcome.images), outcome.predicted_s, outcome.fetch_s)

    def _release(self, images: list[Found]) -> None:
        if images:
            self._store.release(self._layout, [image.offset for image in images])

    def _check_known(self, fetch_id: int) -> None:
        if self._last_id is None or fetch_id > self._last_id:
            raise ProtocolViolation(f"fetch {fetch_id} was never asked for")
