"""A running forge, and what has become of its ranks."""

import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from engine.forge.code import code_digest, this_code
from engine.forge.start import start_forge

_TIMEOUT_S = 30.0
_MAX_EDITS = 10
"""Of sources, while one forge begins."""


@dataclass(frozen=True, slots=True)
class RunningForge:
    process: subprocess.Popen[bytes]
    socket_path: Path

    @property
    def rank_pids(self) -> list[int]:
        """Of those that run."""
        children = psutil.Process(self.process.pid).children()
        return [child.pid for child in children if runs(child.pid)]

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(_TIMEOUT_S)
        connection.connect(str(self.socket_path))
        return connection


@contextmanager
def running_forge() -> Iterator[RunningForge]:
    """One that answers, and of the code that this process says it has, whoever edits it later; its
    ranks must have ended before."""
    with tempfile.TemporaryDirectory(prefix="forge-") as folder:  # the path must be short
        forge = _start(Path(folder) / "private" / "forge.sock")
        try:
            yield forge
        finally:
            _end(forge)


def _start(socket_path: Path) -> RunningForge:
    for _ in range(_MAX_EDITS):
        this_code.cache_clear()
        code = this_code()
        forge = RunningForge(start_forge(socket_path), socket_path)
        try:
            wait_until(socket_path.exists)
            if code_digest() == code:
                return forge
        except BaseException:
            _end(forge)
            raise
        _end(forge)
        socket_path.unlink(missing_ok=True)
    raise AssertionError("sources are edited all the time")


def _end(forge: RunningForge) -> None:
    assert forge.process.stdin is not None
    forge.process.stdin.close()
    forge.process.kill()  # it may be stopped
    forge.process.wait()


def runs(pid: int) -> bool:
    """A process that ended and that nobody asked for its status does not."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def wait_until(is_so: Callable[[], bool], timeout_s: float = _TIMEOUT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it did not come in time"
        time.sleep(0.02)
