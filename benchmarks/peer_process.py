"""A peer engine in a process of its own, which keeps its model loaded and measures when asked.

Between its turns the whole process group is stopped: vLLM's idle worker polls for work and would
take a core from whoever is measured. Must not know which peer it is.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from benchmarks.engine_cases import Case
from benchmarks.engine_timing import Speed
from benchmarks.machine import REPOSITORY
from benchmarks.peer_protocol import PeerReplyError, decode_speed, decode_versions, encode_case

_START_TIMEOUT_S = 900.0
_CASE_TIMEOUT_S = 600.0
_END_TIMEOUT_S = 20.0
_NUM_TAIL_LINES = 25


class PeerFailure(Exception):
    """A peer did not start, ended, failed, or took too long."""


class PeerProcess:
    """Owner of one process group. Stopped whenever it isn't measured."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> None:
        """Start, and wait until the model is loaded; ``log`` gets all that the peer says.

        ``environment`` is all that it sees. Raises PeerFailure.
        """
        self.name = name
        self.command = tuple(command)
        self._log = log
        self._received = b""
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                start_new_session=True,
            )
        try:
            self.versions = decode_versions(self._receive(_START_TIMEOUT_S))
        except BaseException as error:
            self.close()
            if isinstance(error, PeerReplyError):
                raise self._failure(str(error)) from error
            raise
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def measure(self, case: Case) -> Speed:
        """Wake it up, measure, stop it again. Raises PeerFailure."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(encode_case(case))
            self._process.stdin.flush()
            return decode_speed(self._receive(_CASE_TIMEOUT_S))
        except (PeerReplyError, BrokenPipeError) as error:
            raise self._failure(f"{case.name}: {error}") from error
        finally:
            self._signal(signal.SIGSTOP)

    def cpu_time_s(self) -> float:
        """Of all its processes, since they started."""
        total_s = 0.0
        for process in self._processes():
            times = process.cpu_times()
            total_s += times.user + times.system
        return total_s

    def log_tail(self) -> list[str]:
        """The last lines of what it said."""
        return self._log.read_text(encoding="utf-8", errors="replace").splitlines()[
            -_NUM_TAIL_LINES:
        ]

    def close(self) -> None:
        """End all of its processes; again does nothing."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.close()
            self._process.wait(_END_TIMEOUT_S)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            pass
        finally:
            self._signal(signal.SIGKILL)  # children that outlived it are in its group
            self._process.wait()
            self._process.stdout.close()

    def _processes(self) -> list[psutil.Process]:
        first = psutil.Process(self._process.pid)
        return [first, *first.children(recursive=True)]

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # ended; the next read says so

    def _receive(self, timeout_s: float) -> bytes:
        """The next line. Raises PeerFailure."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._received:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([descriptor], [], [], left_s)[0]:
                raise self._failure(f"no answer within {timeout_s:.0f} s")
            read = os.read(descriptor, 1 << 16)
            if not read:
                raise self._failure("its process ended")
            self._received += read
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _failure(self, reason: str) -> PeerFailure:
        tail = "\n".join(self.log_tail())
        return PeerFailure(f"peer {self.name}: {reason}; the end of its log {self._log}:\n{tail}")
