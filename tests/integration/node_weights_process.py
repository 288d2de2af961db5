"""A node's weights in a process of their own, and what a test says to it."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import psutil

SECRET = bytes(range(32))
_ANSWER_S = 60.0


class NodeWeightsProcess:
    """``with`` it, or ``kill`` it. Answers come in the order of the commands if these are given one
    after the other."""

    def __init__(
        self, root: Path, *, host_bytes: int = 10**9, home: Path | None = None, **config: Any
    ) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.home = home or root / "home"
        self.folder = root / "node"
        secret = root / "secret"
        secret.write_bytes(SECRET)
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "engine.weights.node_process"),
                *("--home", str(self.home), "--folder", str(self.folder)),
                *("--secret-file", str(secret)),
                *("--config", json.dumps({"host_bytes": host_bytes, **config})),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.address = self._read()["address"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.pid).children()

    def order(self, order: dict[str, Any]) -> dict[str, Any]:
        return self._ask({"type": "order", "order": order})

    def reach(self, order: dict[str, Any], timeout_s: float = 30.0) -> dict[str, Any]:
        return self._ask({"type": "reach", "order": order, "timeout_s": timeout_s})

    def lease(self, model: str, holder: str, ttl_s: float = 60.0) -> None:
        self._ask({"type": "lease", "model": model, "holder": holder, "ttl_s": ttl_s})

    def release(self, model: str, holder: str) -> None:
        self._ask({"type": "release", "model": model, "holder": holder})

    def report(self) -> dict[str, Any]:
        return self._ask({"type": "report"})

    def state(self, model: str) -> dict[str, Any]:
        found = [state for state in self.report()["models"] if state["model"] == model]
        return dict(found[0])

    def wait_for(self, model: str, **wanted: Any) -> dict[str, Any]:
        """Until the model's state has these values."""
        ends_s = time.monotonic() + _ANSWER_S
        while any((state := self.state(model))[key] != value for key, value in wanted.items()):
            assert time.monotonic() < ends_s, state
            time.sleep(0.02)
        return state

    def tell(self, command: dict[str, Any]) -> None:
        """Without waiting for the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        """As the kernel does when memory is short."""
        self._process.kill()
        self._end()

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._end()

    def _end(self) -> None:
        self._process.wait(timeout=20)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        self.tell(command)
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        content = b""
        while not content.endswith(b"\n"):
            ready, _, _ = select.select([self._process.stdout], [], [], _ANSWER_S)
            assert ready, "no answer"
            piece = os.read(self._process.stdout.fileno(), 1 << 16)
            assert piece, "it has ended"
            content += piece
        return dict(json.loads(content))
