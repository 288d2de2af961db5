"""The front's handle of the step loop's process: starts it, talks to it, notices its end, stops it.

A child process and not a Ray actor: child actors take 6.5 to 10.5 s to start. It inherits which
devices are visible. Imports no torch.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import msgspec

from engine.config import EngineSpec
from engine.errors import EngineStartError
from engine.rank_messages import Failed, RankCommand, RankEvent, Ready, StepReport
from wire.connection import Connection, adopt
from wire.errors import ConnectionClosed
from wire.limits import Limits

_SOURCE_ROOT = Path(__file__).resolve().parents[1]
_PIPE_LIMITS = Limits(heartbeat_period_s=None)
_EXIT_TIMEOUT_S = 5.0
_POLL_S = 0.02


class RankProcess:
    """Call order: ``start``, then ``send`` and ``receive``, then ``stop`` in any case."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._is_ready = False
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(RankEvent).decode

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def silence_s(self) -> float:
        """Time since the step loop last went round, as far as it said."""
        assert self._connection is not None
        return self._connection.silence_s

    async def start(self, spec: EngineSpec) -> Ready:
        """Start the process and wait until its model is loaded and warm.

        Raises ``EngineStartError``. Call from a thread that lives as long as the process shall:
        Linux takes the end of the thread for the end of the parent.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            self._spawn(theirs)
        self._connection = await adopt(ours, _PIPE_LIMITS)
        self._connection.send(spec.model_dump_json().encode())
        timeout_s = spec.config.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                event = self._decode(await self._connection.receive())
        except TimeoutError as error:
            raise EngineStartError(
                f"{spec.model}: not ready after {timeout_s:g} s; raise start_timeout_s or use a "
                "faster disk"
            ) from error
        except ConnectionClosed as error:
            raise EngineStartError(f"{spec.model}: {await self.describe_end()}") from error
        if isinstance(event, Failed):
            raise EngineStartError(f"{spec.model}: {event.message}")
        assert isinstance(event, Ready)
        self._is_ready = True
        return event

    def send(self, command: RankCommand) -> None:
        assert self._connection is not None
        self._connection.send(self._encode(command))

    async def receive(self) -> StepReport:
        """The next step's report. Raises ``ConnectionClosed`` when the process is gone."""
        assert self._connection is not None
        event = self._decode(await self._connection.receive())
        assert isinstance(event, StepReport)
        return event

    async def describe_end(self) -> str:
        """How the process ended, once its pipe has closed."""
        await self._wait(_EXIT_TIMEOUT_S)
        code = self._process.returncode if self._process is not None else None
        if code is None:
            return "the step loop's process closed its pipe without ending"
        if code == -signal.SIGKILL:
            return "the step loop's process was killed: too little memory for model and KV pool?"
        if code < 0:
            return f"the step loop's process died by {signal.Signals(-code).name}"
        return f"the step loop's process ended with exit status {code}; its log says why"

    async def stop(self) -> None:
        """End the process, by force if it does not go by itself."""
        if self._connection is not None:
            self._connection.close("the front stops")
        if self._process is not None:
            if self._is_ready:  # while it loads it does not look at the pipe
                await self._wait(_EXIT_TIMEOUT_S)
            if self.is_running:
                self._process.kill()
                await self._wait(_EXIT_TIMEOUT_S)

    async def _wait(self, timeout_s: float) -> None:
        for _ in range(round(timeout_s / _POLL_S)):
            if not self.is_running:
                return
            await asyncio.sleep(_POLL_S)

    def _spawn(self, theirs: socket.socket) -> None:
        arguments = ["--fd", str(theirs.fileno()), "--parent-pid", str(os.getpid())]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "engine.rank", *arguments],
            pass_fds=[theirs.fileno()],
            cwd=_SOURCE_ROOT,  # where -m finds the package, installed or not
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the parent, which drains first
        )
