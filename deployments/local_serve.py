"""A local Serve as a child process: start it, wait until it is ready or failed, stop it all."""

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

import psutil

from deployments.environment import child_environment, temporary_roots
from deployments.local_environment import LocalPorts, local_environment
from deployments.private_dir import PrivateDir
from deployments.report import DRAIN_SIGNAL, Report, State, reason_in

logger = logging.getLogger(__name__)

MAX_FOLDER_BYTES = 25
"""Ray and HAProxy put Unix sockets up to 82 bytes below it; the kernel allows 107."""

POLL_PERIOD_S = 0.1
STOP_TIMEOUT_S = 60.0
KILL_TIMEOUT_S = 5.0


class LocalServe:
    """Context manager around the child; leaving it stops the child and everything it started."""

    def __init__(self, file: Path, *, health_url: str) -> None:
        self._file = file
        self._health_url = health_url
        self._folder = PrivateDir(temporary_roots(), max_bytes=MAX_FOLDER_BYTES)
        self._ports = LocalPorts.free()
        self._child: subprocess.Popen[bytes] | None = None
        self._reports: BinaryIO | None = None
        self._last = Report(State.STARTING, "Ray")
        self.is_keeping_logs = False
        """Set to leave the folder with all logs behind."""

    @property
    def dashboard_url(self) -> str:
        return f"http://127.0.0.1:{self._ports.dashboard}"

    @property
    def pid(self) -> int:
        """Of the child, which everything else is below."""
        assert self._child is not None
        return self._child.pid

    @property
    def logs(self) -> Path:
        return self._folder.path / "ray" / "session_latest" / "logs"

    @property
    def _output(self) -> Path:
        """What the child prints."""
        return self._folder.path / "serve_run.log"

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def wait_until_ready(self, interrupted: threading.Event, *, timeout_s: float) -> Report:
        """Blocks until READY or FAILED, or until `interrupted` is set (still STARTING then)."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            report = self._look()
            if report.state is not State.STARTING or interrupted.wait(POLL_PERIOD_S):
                return report
            if time.monotonic() > deadline_s:
                detail = f"not ready within {timeout_s:.0f} s, still starting {report.detail}"
                return Report(State.FAILED, detail)

    def is_alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def kill(self) -> None:
        """End the child at once; `stop` still has to clear up what it started."""
        if self._child is not None and self._child.poll() is None:
            self._child.kill()

    def drain(self) -> None:
        """Let the open answers be finished, take no new ones, end; blocks until then or `kill`."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(DRAIN_SIGNAL)
            self._child.wait()

    def stop(self) -> None:
        """End the child at once, then whatever of it is left. Idempotent."""
        if self._child is None:
            return
        processes = _family(self._child.pid)
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGINT)
            try:
                self._child.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                logger.warning("Ray Serve did not end within %.0f s: killing it", STOP_TIMEOUT_S)
                self._child.kill()
                self._child.wait()
        assert self._child.stdin is not None
        self._child.stdin.close()
        _, left = psutil.wait_procs(processes, timeout=KILL_TIMEOUT_S)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=KILL_TIMEOUT_S)
        self._child = None

    def _start(self) -> None:
        folder = self._folder
        read, write = os.pipe()
        self._reports = os.fdopen(read, "rb", buffering=0)
        with os.fdopen(write, "wb") as reports, self._output.open("wb") as output:
            # A session of its own: Ctrl-C at the terminal reaches us, and we stop the child once.
            self._child = subprocess.Popen(
                [
                    *(sys.executable, "-m", "deployments.serve_run", str(self._file)),
                    *("--dashboard-port", str(self._ports.dashboard)),
                    *("--report-descriptor", str(reports.fileno())),
                ],
                env=child_environment(local_environment(folder.path, self._ports)),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                # The lock, since the child outlives us for a while if we are killed.
                pass_fds=(reports.fileno(), folder.lock_descriptor),
                start_new_session=True,
            )

    def _end(self) -> None:
        try:
            self.stop()
        finally:
            if self._reports is not None:
                self._reports.close()
            if self.is_keeping_logs:
                self._folder.keep()
            else:
                self._folder.remove()

    def _look(self) -> Report:
        """The state now, without waiting."""
        is_alive = self.is_alive()  # asked first: what it said before its end is read below
        self._read_reports()
        if self._last.state is State.FAILED:
            return self._last
        if not is_alive:
            return Report(State.FAILED, f"Ray Serve ended: {self._last_output()}")
        if self._last.state is State.READY and not _answers(self._health_url):
            return Report(State.STARTING, "the HTTP proxy")
        return self._last

    def _read_reports(self) -> None:
        assert self._reports is not None
        while self._last.state is State.STARTING and select.select([self._reports], [], [], 0)[0]:
            line = self._reports.readline()
            if not line:
                break  # the child is ending
            self._last = Report.from_line(line)

    def _last_output(self) -> str:
        return reason_in(self._output.read_text("utf-8", "replace"))


def _family(pid: int) -> list[psutil.Process]:
    """Everything of the child's session, which outlives the child, and what is below that.

    Ray's workers stay in the session; an engine's step loop has one of its own.
    """
    processes = list(psutil.process_iter(["ppid"]))
    session = {process.pid for process in processes if _session_of(process.pid) == pid}
    return [p for p in processes if p.pid in session or p.info["ppid"] in session]


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:  # it has ended
        return None


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as response:  # noqa: S310  our own http URL
            return bool(response.status == 200)
    except OSError:  # HTTP errors are among them
        return False
