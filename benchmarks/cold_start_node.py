"""A node's weights in a process of their own, ``engine.weights.node_process``, and who orders.

Must not know what is measured.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from benchmarks.machine import REPOSITORY
from benchmarks.result import ResultError
from cache_tiers.config import WeightsConfig
from cache_tiers.messages import PeerAddress
from cache_tiers.weights.messages import NodeWeightsReport, WeightsOrder, WeightsState
from engine.weights.node_process import (
    AskCounts,
    Command,
    Counted,
    Order,
    Reach,
    Refused,
    Report,
    Started,
)

_HOST = "127.0.0.1"
_START_S = 60.0
_ANSWER_S = 20.0
_CLOSE_S = 20.0
_READ_BYTES = 1 << 16

_Answer = TypeVar("_Answer", Started, WeightsState, NodeWeightsReport, Counted)


class NodeLayout:
    """Where a node's files are: models on its disk, and a folder that ranks find staged ones in."""

    def __init__(self, root: Path, home: Path | None = None) -> None:
        self.home = home or root / "home"
        self.folder = root / "node"
        self.log = root / "node.log"
        for folder in (self.home, self.folder):
            folder.mkdir(parents=True, exist_ok=True)


class WeightsNode:
    """The parent's handle: one command after the other."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self._unread = b""
        self.address: PeerAddress = self._answer(Started, _START_S).address
        """For other nodes."""

    def order(self, order: WeightsOrder) -> WeightsState:
        """How it stands at this moment."""
        return self._ask(Order(order), WeightsState, _ANSWER_S)

    def reach(self, order: WeightsOrder, timeout_s: float) -> WeightsState:
        """Raises ``ResultError`` if that rung can't be reached by then."""
        state = self._ask(Reach(order, timeout_s), WeightsState, timeout_s + _ANSWER_S)
        if state.rung < order.rung:
            raise ResultError(f"{order.model} stays {state.rung.name}: {state.failure}")
        return state

    def report(self) -> NodeWeightsReport:
        return self._ask(Report(), NodeWeightsReport, _ANSWER_S)

    def counts(self) -> Counted:
        return self._ask(AskCounts(), Counted, _ANSWER_S)

    def kill(self) -> None:
        """As by kill -9."""
        self.process.kill()
        self.process.communicate()

    def close(self) -> None:
        """An orderly end. Raises ``ResultError`` if it is none."""
        self.process.terminate()
        try:
            self.process.communicate(timeout=_CLOSE_S)
        except subprocess.TimeoutExpired:
            self.kill()
        if self.process.returncode != 0:
            raise ResultError(f"a node did not close ({self.process.returncode}): {self._end()}")

    def _ask(self, command: Command, kind: type[_Answer], timeout_s: float) -> _Answer:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(command) + b"\n")
            self.process.stdin.flush()
        except OSError as error:
            raise ResultError(f"a node ended by itself: {self._end()}") from error
        return self._answer(kind, timeout_s)

    def _answer(self, kind: type[_Answer], timeout_s: float) -> _Answer:
        line = self._line(time.monotonic() + timeout_s)
        try:
            return msgspec.json.decode(line, type=kind)
        except msgspec.ValidationError as error:
            refused = msgspec.json.decode(line, type=Refused)
            raise ResultError(f"a node refuses: {refused.reason}") from error

    def _line(self, deadline_s: float) -> bytes:
        assert self.process.stdout is not None
        while b"\n" not in self._unread:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([self.process.stdout], [], [], left_s)[0]:
                raise ResultError(f"a node gives no answer: {self._end()}")
            content = os.read(self.process.stdout.fileno(), _READ_BYTES)
            if not content:
                raise ResultError(f"a node ended by itself: {self._end()}")
            self._unread += content
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _end(self) -> str:
        return self._log.read_text(errors="replace")[-500:]


def start_node(
    config: WeightsConfig,
    layout: NodeLayout,
    *,
    environment: Mapping[str, str],
    host: str = _HOST,
    run_by: Sequence[str] = (),
) -> WeightsNode:
    """``run_by`` is a command that runs the process elsewhere. Raises ``ResultError``."""
    command = [*run_by, sys.executable, "-m", "engine.weights.node_process"]
    command += ["--config", config.model_dump_json(), "--host", host]
    command += ["--home", str(layout.home), "--folder", str(layout.folder)]
    with layout.log.open("ab") as log:
        process = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    try:
        return WeightsNode(process, layout.log)
    except BaseException:
        process.kill()
        process.communicate()
        raise


@contextmanager
def running_node(
    config: WeightsConfig,
    layout: NodeLayout,
    *,
    environment: Mapping[str, str],
    host: str = _HOST,
    run_by: Sequence[str] = (),
) -> Iterator[WeightsNode]:
    """One that ends with the block."""
    node = start_node(config, layout, environment=environment, host=host, run_by=run_by)
    try:
        yield node
        if node.process.poll() is None:
            node.close()
    finally:
        node.kill()


def source_environment(url: str) -> dict[str, str]:
    """Of a process whose object store is at ``url`` and asks for nothing."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
