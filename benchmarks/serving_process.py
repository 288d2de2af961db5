"""A server that a benchmark starts, and ends with everything that the server started.

Knows commands and processes, not what they serve.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from benchmarks.serving_log import last_lines

POLL_PERIOD_S = 0.25
STOP_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 10.0
NUM_LINES_OF_ERROR = 15


class ServerProcessError(Exception):
    """The server ended by itself or did not come up in time; with what it printed last."""


class ServerProcess:
    """Context manager: entering starts the process, leaving ends it and all that came of it."""

    def __init__(
        self, command: Sequence[str], *, environment: Mapping[str, str], folder: Path, log: Path
    ) -> None:
        self._command = command
        self._environment = environment
        self._folder = folder
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self._log.open("wb") as output:
            # A session of its own: Ctrl-C at the terminal reaches us, and we stop it once.
            self._child = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.PIPE,  # closes with us, which a server may heed
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop()

    def wait_until(self, is_ready: Callable[[], bool], timeout_s: float) -> float:
        """Blocks until ready; returns how many seconds that took. Raises ServerProcessError."""
        assert self._child is not None
        started_s = time.monotonic()
        while not is_ready():
            elapsed_s = time.monotonic() - started_s
            status = self._child.poll()
            if status is not None:
                raise self._error(f"ended with status {status} before it answered")
            if elapsed_s > timeout_s:
                raise self._error(f"did not answer within {timeout_s:.0f} s")
            time.sleep(POLL_PERIOD_S)
        return time.monotonic() - started_s

    def _error(self, what: str) -> ServerProcessError:
        tail = "\n  ".join(last_lines(self._log, NUM_LINES_OF_ERROR)) or "(it printed nothing)"
        return ServerProcessError(f"{' '.join(self._command)} {what}; its last lines:\n  {tail}")

    def _stop(self) -> None:
        assert self._child is not None
        processes = _family(self._child.pid)
        try:
            # Not SIGINT: what a shell starts in the background inherits that one ignored.
            self._child.send_signal(signal.SIGTERM)
            self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass
        finally:  # also if a second Ctrl-C cuts the wait
            processes |= _family(self._child.pid)
            _kill(processes)
            self._child.wait()
            assert self._child.stdin is not None
            self._child.stdin.close()


def _family(pid: int) -> set[psutil.Process]:
    """The process, its session, which outlives it, and everything below those."""
    roots = [process for process in psutil.process_iter() if _session_of(process.pid) == pid]
    family = set(roots)
    for process in roots:
        try:
            family.update(process.children(recursive=True))
        except psutil.NoSuchProcess:
            continue
    return family


def _kill(processes: set[psutil.Process]) -> None:
    # A moment for what is ending by itself, as the workers of a server that has just ended.
    _, left = psutil.wait_procs(list(processes), timeout=1.0)
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(left, timeout=KILL_TIMEOUT_S)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # it has ended
        return None
