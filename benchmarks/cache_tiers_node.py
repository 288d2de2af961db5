"""A node's cache in a process of its own that also tells its counters: for benchmarks.

It ends with the pipe to its parent. Must not know engines, or what is measured.
"""

import asyncio
import logging
import multiprocessing
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.result import ResultError
from cache_tiers.config import NodeCacheConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.node_cache import NodeCache, NodeCacheStats

_SOURCE_ROOT = Path(__file__).resolve().parents[1]
_HOST = "127.0.0.1"
_START_S = 60.0
_ANSWER_S = 20.0
_ASK_STATS = "stats"


@dataclass(frozen=True, slots=True)
class CacheNode:
    """The parent's handle."""

    process: subprocess.Popen[bytes]
    pipe: Connection
    socket_path: Path
    address: PeerAddress
    """For other nodes."""

    def stats(self) -> NodeCacheStats:
        self.pipe.send(_ASK_STATS)
        if not self.pipe.poll(_ANSWER_S):
            raise ResultError(f"the node's cache said nothing for {_ANSWER_S:g} s")
        stats = self.pipe.recv()
        assert isinstance(stats, NodeCacheStats)
        return stats

    def kill(self) -> None:
        """As by kill -9; disks are as they were at that moment."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()

    def close(self) -> None:
        """An orderly end. Raises ``ResultError`` if it is none."""
        self.pipe.close()
        try:
            code = self.process.wait(_ANSWER_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if code != 0:
            raise ResultError(f"the node's cache did not close (exit code {code})")

    def pause(self) -> None:
        """It hangs until ``resume``."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def start_node(config: NodeCacheConfig, socket_path: Path) -> CacheNode:
    """``socket_path``: in a folder of this user alone. Raises ``ResultError``."""
    ours, theirs = multiprocessing.Pipe()
    command = [sys.executable, "-m", __name__, str(theirs.fileno())]
    process = subprocess.Popen(command, cwd=_SOURCE_ROOT, pass_fds=[theirs.fileno()])
    theirs.close()
    try:
        ours.send((config, socket_path))
        if not ours.poll(_START_S):
            raise ResultError(f"the node's cache did not start within {_START_S:g} s")
        address = ours.recv()
    except BaseException as error:
        process.kill()
        process.wait()
        ours.close()
        if isinstance(error, (EOFError, OSError)):
            raise ResultError("the node's cache can't start: see above") from error
        raise
    return CacheNode(process, ours, socket_path, address)


@contextmanager
def running_node(config: NodeCacheConfig, socket_path: Path) -> Iterator[CacheNode]:
    """One that ends with the block."""
    node = start_node(config, socket_path)
    try:
        yield node
        node.close()
    finally:
        node.process.kill()
        node.process.wait()


def main() -> None:
    """In the node's process, whose argument is its end of the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to take
    logging.basicConfig(level=logging.ERROR)
    pipe: Connection = Connection(int(sys.argv[1]))
    config, socket_path = pipe.recv()
    asyncio.run(_serve(pipe, config, socket_path))


async def _serve(pipe: Connection, config: NodeCacheConfig, socket_path: Path) -> None:
    cache = NodeCache(config, socket_path=socket_path, host=_HOST, secret=secrets.token_bytes(32))
    pipe.send(await cache.start())
    ended = asyncio.Event()

    def answer() -> None:
        try:
            pipe.recv()
            pipe.send(cache.stats())
        except (EOFError, OSError):
            ended.set()

    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), answer)
    await ended.wait()
    loop.remove_reader(pipe.fileno())
    await cache.close()


if __name__ == "__main__":
    main()
