"""A node's cache, and the harm that comes to it: killed, frozen, bits flipped, its disk full.

Must not know engines.
"""

import mmap
import os
import random
import resource
import time
from pathlib import Path

from benchmarks.cache_tiers_node import CacheNode, start_node
from benchmarks.result import ResultError
from cache_tiers.config import DiskConfig, NodeCacheConfig
from cache_tiers.messages import PeerAddress

_MIB = 1024**2
_ARENA_BYTES = 16 * _MIB
_DISK_BYTES = 64 * _MIB
_ARENA_NAME = "headwater-kv"
_MAX_FLIPS = 24
_LOAD_TIMEOUT_S = 0.5
_FULL_BYTES = 1024
"""No longer may files become."""
_FULL_S = (0.2, 1.0, 3.0)
_REST_S = 15.0
_POLL_S = 0.1
_PAUSES_S = (0.05, 0.3, 0.8)


class FuzzNode:
    """Owner of one node's process and folder. Both tiers are far too small for what is asked."""

    def __init__(self, folder: Path, draw: random.Random) -> None:
        folder.mkdir(mode=0o700)
        self._disk = folder / "disk"
        self.socket_path = folder / "node.sock"
        self._config = NodeCacheConfig(
            host_bytes=_ARENA_BYTES,
            disks=(DiskConfig(path=self._disk, max_bytes=_DISK_BYTES),),
            load_timeout_s=_LOAD_TIMEOUT_S,
        )
        self._draw = draw
        self._node: CacheNode | None = None
        self._resume_at_s: float | None = None
        self._empty_at_s: float | None = None

    @property
    def is_running(self) -> bool:
        return self._node is not None

    @property
    def address(self) -> PeerAddress | None:
        """For other nodes, while it runs."""
        return None if self._node is None else self._node.address

    def start(self) -> None:
        """With what its disk holds. Nothing happens while it runs."""
        if self._node is None:
            self._node = start_node(self._config, self.socket_path)

    def kill(self) -> None:
        if self._node is not None:
            self._node.kill()
            self._node, self._resume_at_s, self._empty_at_s = None, None, None

    def close(self) -> None:
        """Raises ``ResultError`` if it does not end in order."""
        if self._node is not None:
            self.resume()
            self._node.close()
            self._node = None

    def check(self) -> None:
        """Raises ``ResultError`` if the node ended by itself; ends what was to last a moment."""
        if self._node is None:
            return
        if self._node.process.poll() is not None:
            raise ResultError(f"a node ended by itself: {self._node.process.returncode}")
        if self._resume_at_s is not None and time.monotonic() >= self._resume_at_s:
            self.resume()
        if self._empty_at_s is not None and time.monotonic() >= self._empty_at_s:
            self._empty_at_s = None
            _, most = resource.prlimit(self._node.process.pid, resource.RLIMIT_FSIZE)
            resource.prlimit(self._node.process.pid, resource.RLIMIT_FSIZE, (most, most))

    def check_at_rest(self) -> None:
        """No engine and no other node asks anything any more: raises ``ResultError`` if something
        is held for one that is gone, or one broke the protocol.
        """
        if self._node is None:
            return
        self.resume()
        deadline_s = time.monotonic() + _REST_S
        while True:
            stats = self._node.stats()
            num_held = stats.store.num_leases + stats.store.num_granted + stats.engines.num_engines
            if num_held == 0 and stats.engines.num_violations == 0:
                return
            if time.monotonic() > deadline_s:
                raise ResultError(f"a node is not at rest: {stats}")
            time.sleep(_POLL_S)

    def pause(self) -> None:
        """For a moment, which ``check`` ends."""
        if self._node is not None and self._resume_at_s is None:
            self._node.pause()
            self._resume_at_s = time.monotonic() + self._draw.choice(_PAUSES_S)

    def resume(self) -> None:
        if self._node is not None and self._resume_at_s is not None:
            self._node.resume()
            self._resume_at_s = None

    def flip_in_arena(self) -> None:
        """Some bits, wherever they are."""
        if self._node is None:
            return
        file = os.open(self._arena_path(self._node), os.O_RDWR)
        try:
            with mmap.mmap(file, 0) as memory:
                for _ in range(self._draw.randint(1, _MAX_FLIPS)):
                    memory[self._draw.randrange(len(memory))] ^= 1 << self._draw.randrange(8)
        finally:
            os.close(file)

    def flip_on_disk(self) -> None:
        """Some bits of one file, which may be any of the folder; while nobody runs, too."""
        paths = sorted(path for path in self._disk.glob("*") if path.stat().st_size)
        if not paths:
            return
        file = os.open(self._draw.choice(paths), os.O_RDWR)
        try:
            for _ in range(self._draw.randint(1, _MAX_FLIPS)):
                offset = self._draw.randrange(os.fstat(file).st_size)
                byte = os.pread(file, 1, offset)[0] ^ 1 << self._draw.randrange(8)
                os.pwrite(file, bytes([byte]), offset)
        finally:
            os.close(file)

    def fill_disk(self) -> None:
        """No file grows, for a moment, which ``check`` ends."""
        if self._node is not None and self._empty_at_s is None:
            pid = self._node.process.pid
            _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (_FULL_BYTES, most))
            self._empty_at_s = time.monotonic() + self._draw.choice(_FULL_S)

    @staticmethod
    def _arena_path(node: CacheNode) -> Path:
        for link in Path(f"/proc/{node.process.pid}/fd").iterdir():
            if _ARENA_NAME in os.readlink(link):
                return link
        raise ResultError("the node has no arena")
