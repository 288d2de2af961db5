"""A node's forge, which forks ranks with their imports done: started, and started again when it
ended.

Ranks do without while there is none, and those that it forked outlive it. Must not know what it
imports.
"""

import asyncio
import logging
import subprocess
from collections.abc import Callable
from pathlib import Path

from engine.forge.start import start_forge

logger = logging.getLogger(__name__)

WATCH_PERIOD_S = 2.0
_MOST_PERIODS = 64
"""Between attempts, if it never lives for long: an interpreter that can't import, say."""
_END_TIMEOUT_S = 2.0


class ForgeKeeper:
    """Call order: ``start``, ``close``; on one event loop."""

    def __init__(
        self,
        socket_path: Path,
        *,
        start: Callable[[Path], subprocess.Popen[bytes]] = start_forge,
        period_s: float = WATCH_PERIOD_S,
    ) -> None:
        self.socket_path = socket_path
        self._start = start
        self._period_s = period_s
        self._process: subprocess.Popen[bytes] | None = None
        self._watcher: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Returns at once. Raises `OSError`."""
        self._process = self._start(self.socket_path)
        self._watcher = asyncio.create_task(self._watch(self._process), name="watch forge")

    async def close(self) -> None:
        """Its ranks go on."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.wait({self._watcher})
        if self._process is not None:
            await asyncio.to_thread(_end, self._process)

    async def _watch(self, process: subprocess.Popen[bytes]) -> None:
        num_alive, num_waited = 0, 1  # periods: since its start, and before that
        while True:
            await asyncio.sleep(self._period_s)
            num_alive += 1
            if process.poll() is None:
                continue
            logger.warning("the node's forge ended with status %d", process.returncode)
            _end(process)
            num_waited = 1 if num_alive > num_waited else min(2 * num_waited, _MOST_PERIODS)
            await asyncio.sleep(self._period_s * num_waited)
            process = self._process = self._start(self.socket_path)
            num_alive = 0


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()  # which it takes for its end
    try:
        process.wait(_END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
