"""A node's cache whose event loop runs in a thread, for engines that block."""

import asyncio
import tempfile
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cache_tiers.arena import Arena
from cache_tiers.messages import PeerAddress
from cache_tiers.node_service import NodeService
from cache_tiers.tier import Tier, TierError
from tests.unit.cache_tiers.fake_image_store import FakeImageStore


@dataclass(frozen=True, slots=True)
class NodeThread:
    socket_path: Path
    store: FakeImageStore
    """Written by the thread; read it when nothing is under way."""
    loop: asyncio.AbstractEventLoop
    stopping: asyncio.Event

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.stopping.set)


@contextmanager
def node_thread(arena_bytes: int = 2**25) -> Iterator[NodeThread]:
    started: Future[NodeThread] = Future()
    # A folder with a short name: socket paths are limited.
    with tempfile.TemporaryDirectory(prefix="hw-") as folder, ThreadPoolExecutor(1) as pool:
        serving = _serve(Path(folder) / "node.sock", arena_bytes, started)
        ended = pool.submit(asyncio.run, serving)
        either: list[Future[Any]] = [started, ended]
        wait(either, timeout=10, return_when=FIRST_COMPLETED)
        if ended.done():
            ended.result()  # why it did not start
        node = started.result(timeout=0)
        try:
            yield node
        finally:
            node.stop()
            ended.result(timeout=10)


async def _serve(socket_path: Path, arena_bytes: int, started: Future[NodeThread]) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    arena = Arena(arena_bytes)
    store = FakeImageStore(arena)
    store.may_fetch.set()
    service = NodeService(store, arena, socket_path, _no_peers)
    await service.start()
    started.set_result(NodeThread(socket_path, store, loop, stopping))
    await stopping.wait()
    await service.close()
    arena.close()


def _no_peers(address: PeerAddress) -> Tier:
    raise TierError(f"nobody at {address.host}")
