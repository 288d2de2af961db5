"""A local Serve as a child process: start it, wait until it is ready or failed, stop it all."""

import logging
import os
import select
import shutil
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

from deployments.environment import child_environment, make_private_dir
from deployments.local_environment import LocalPorts, local_environment
from deployments.report import Report, State, reason_in

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
        self._folder = make_private_dir("hw-", max_bytes=MAX_FOLDER_BYTES)
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
        return self._folder / "ray" / "session_latest" / "logs"

    def __enter__(self) -> Self:
        read, write = os.pipe()
        self._reports = os.fdopen(read, "rb", buffering=0)
        with (self._folder / "serve_run.log").open("wb") as output:
            # A session of its own: Ctrl-C at the terminal reaches us, and we stop the child once.
            self._child = subprocess.Popen(
                [
                    *(sys.executable, "-m", "deployments.serve_run", str(self._file)),
                    *("--dashboard-port", str(self._ports.dashboard)),
                    *("--report-descriptor", str(write)),
                ],
                env=child_environment(local_environment(self._folder, self._ports)),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(write,),
                start_new_session=True,
            )
        os.close(write)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
        if self._reports is not None:
            self._reports.close()
        if not self.is_keeping_logs:
            shutil.rmtree(self._folder, ignore_errors=True)

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

    def stop(self) -> None:
        """Drain and end the child, then whatever of it is left. Idempotent."""
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

    def _look(self) -> Report:
        """The state now, without waiting."""
        if not self.is_alive():
            return Report(State.FAILED, f"Ray Serve ended: {self._last_output()}")
        assert self._reports is not None
        while self._last.state is State.STARTING and select.select([self._reports], [], [], 0)[0]:
            line = self._reports.readline()
            if not line:
                break  # the child is ending
            self._last = Report.from_line(line)
        if self._last.state is State.READY and not _answers(self._health_url):
            return Report(State.STARTING, "the HTTP proxy")
        return self._last

    def _last_output(self) -> str:
        return reason_in((self._folder / "serve_run.log").read_text("utf-8", "replace"))


def _family(pid: int) -> list[psutil.Process]:
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as response:  # noqa: S310  our own http URL
            return bool(response.status == 200)
    except OSError:  # HTTP errors are among them
        return False
