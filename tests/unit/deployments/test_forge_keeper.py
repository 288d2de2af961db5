"""A node's forge is started again when it ended, ever more rarely, and ends with its keeper."""

import asyncio
import io
import subprocess
from pathlib import Path
from typing import IO, cast

import pytest

from deployments.forge_keeper import ForgeKeeper

SOCKET = Path("/tmp/x/forge.sock")


class Forge:
    """Ends when its standard input is closed, or by ``returncode``."""

    def __init__(self) -> None:
        self.stdin: IO[bytes] = io.BytesIO()
        self.returncode: int | None = None

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        assert self.stdin.closed
        return 0

    def kill(self) -> None:
        raise AssertionError("it ended by itself")


class Forges:
    def __init__(self, *, can_live: bool = True) -> None:
        self.started: list[Forge] = []
        self.starts: asyncio.Queue[None] = asyncio.Queue()
        self.can_live = can_live

    def start(self, socket_path: Path) -> subprocess.Popen[bytes]:
        assert socket_path == SOCKET
        forge = Forge()
        forge.returncode = None if self.can_live else 1
        self.started.append(forge)
        self.starts.put_nowait(None)
        return cast("subprocess.Popen[bytes]", forge)


async def _until_started(forges: Forges, num_forges: int) -> None:
    async with asyncio.timeout(5):
        for _ in range(num_forges):
            await forges.starts.get()


async def test_one_that_ended_is_started_again(caplog: pytest.LogCaptureFixture) -> None:
    forges = Forges()
    keeper = ForgeKeeper(SOCKET, start=forges.start, period_s=0.001)
    keeper.start()
    forges.started[0].returncode = -9
    await _until_started(forges, 2)
    await keeper.close()
    assert "the node's forge ended with status -9" in caplog.text
    assert [forge.stdin.closed for forge in forges.started] == [True, True]


async def test_one_that_never_lives_is_tried_ever_more_rarely() -> None:
    forges = Forges(can_live=False)
    keeper = ForgeKeeper(SOCKET, start=forges.start, period_s=0.005)
    began_s = asyncio.get_running_loop().time()
    keeper.start()
    await _until_started(forges, 5)
    assert asyncio.get_running_loop().time() - began_s >= 0.005 * (2 + 4 + 8 + 16)
    await keeper.close()
