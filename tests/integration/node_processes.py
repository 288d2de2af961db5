"""A node's cache as a process of its own, for tests."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cache_tiers.config import NodeCacheConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.node_process import NodeStarted

SOURCE_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class NodeProcess:
    process: subprocess.Popen[bytes]
    socket_path: Path
    peer: PeerAddress

    async def kill(self) -> None:
        """As by kill -9."""
        self.process.kill()
        await asyncio.to_thread(self.process.wait)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def num_arena_maps(pid: int) -> int:
    """Arenas that a process maps."""
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:headwater-kv")


@asynccontextmanager
async def node_process(folder: Path, config: NodeCacheConfig) -> AsyncIterator[NodeProcess]:
    """``folder`` for its socket; ends it by closing its standard input."""
    socket_path = folder / "node.sock"
    process = subprocess.Popen(  # noqa: ASYNC220 - a fork, and nothing to wait for
        [
            sys.executable,
            *("-m", "cache_tiers.node_process"),
            *("--config", config.model_dump_json()),
            *("--socket", str(socket_path)),
        ],
        cwd=SOURCE_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = await asyncio.to_thread(process.stdout.readline)
        started = msgspec.json.decode(line, type=NodeStarted)
        yield NodeProcess(process, socket_path, started.peer)
        process.stdin.close()
        await asyncio.to_thread(process.wait, 20)
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
