"""The handle of one rank's process: starts it, talks to it, sees how it is, ends it.

A child process, or one that the node's forge forks; not a Ray actor: child actors take 6.5 to
10.5 s to start. It inherits which devices are visible. Must not know the other ranks
(``engine.rank_group``). Imports no torch.
"""

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import msgspec
import psutil

from engine.config import EngineSpec, RankSpec
from engine.errors import EngineStartError
from engine.forge.client import ForgeUnavailable, fork_rank
from engine.rank_messages import Failed, Loaded, RankCommand, RankEvent, Ready, StepReport
from engine.spawned_process import SpawnedProcess
from wire.connection import Connection, adopt
from wire.errors import ConnectionClosed
from wire.limits import Limits

logger = logging.getLogger(__name__)

RANK_MODULE = "engine.rank"
_PIPE_LIMITS = Limits(heartbeat_period_s=None)
_END_TIMEOUT_S = 1.0
"""A process whose pipe closed is gone by then."""
_POLL_S = 0.02


class _Process(Protocol):
    @property
    def pid(self) -> int: ...

    @property
    def is_running(self) -> bool: ...

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or if nobody can tell; negative: the signal that killed it."""

    def kill(self) -> None:
        """Also a stopped one; fine if it is gone."""


class RankProcess:
    """Call order: ``spawn``, ``load``, then ``send`` and ``receive``, then ``stop`` in any case."""

    def __init__(self, rank: RankSpec, module: str = RANK_MODULE) -> None:
        """``module``: what Python runs; a benchmark has a rank of its own, and no forge for it."""
        self._rank = rank
        self._module = module
        self._process: _Process | None = None
        self._is_forged = False
        self._socket: socket.socket | None = None
        self._connection: Connection | None = None
        self._is_loaded = False
        self._last_words: str | None = None
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(RankEvent).decode

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def is_forged(self) -> bool:
        """Whether the forge started it."""
        return self._is_forged

    @property
    def is_stopped(self) -> bool:
        """Whether it was sent SIGSTOP: it lives, but does nothing."""
        try:
            return psutil.Process(self.pid).status() == psutil.STATUS_STOPPED
        except psutil.NoSuchProcess:
            return False

    @property
    def was_killed(self) -> bool:
        """Whether a signal ended it."""
        code = self._process.exit_code if self._process is not None else None
        return code is not None and code < 0

    @property
    def silence_s(self) -> float:
        """Time since its loop last went round, as far as it said."""
        assert self._connection is not None
        return self._connection.silence_s

    @property
    def name(self) -> str:
        """For what is said to operators."""
        if self._rank.size == 1:
            return "the step loop's process"
        return f"the process of rank {self._rank.rank}"

    def spawn(
        self,
        links: Sequence[socket.socket] = (),
        rendezvous: Path | None = None,
        forge: Path | None = None,
    ) -> None:
        """Start the process, which gets ``links`` to other ranks and meets them at ``rendezvous``.
        If there is a ``forge`` it forks the process; where it can't, an interpreter is started.

        Call from a thread that lives as long as the process shall: Linux takes the end of the
        thread for the end of the parent.
        """
        arguments = ["--rank", str(self._rank.rank), "--spawned-s", str(time.monotonic())]
        if rendezvous is not None:
            arguments += ["--rendezvous", str(rendezvous)]
        if forge is not None and self._module == RANK_MODULE:
            try:
                with self._new_pipe() as theirs:
                    descriptors = [sock.fileno() for sock in (theirs, *links)]
                    self._process = fork_rank(forge, arguments, descriptors)
                self._is_forged = True
                return
            except ForgeUnavailable as reason:
                logger.warning("%s starts an interpreter of its own: %s", self.name, reason)
        # Another pipe: a forge that hangs may have got an end of the first one.
        with self._new_pipe() as theirs:
            descriptors = [sock.fileno() for sock in (theirs, *links)]
            self._process = SpawnedProcess(self._module, arguments, descriptors)

    async def load(self, spec: EngineSpec) -> Ready | Loaded:
        """Wait until rank 0 is warm, or another one has loaded. Raises ``EngineStartError``."""
        assert self._socket is not None, "load follows spawn"
        self._connection = await adopt(self._socket, _PIPE_LIMITS)
        self._socket = None
        self._connection.send(spec.model_dump_json().encode())
        timeout_s = spec.config.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                event = await self._receive()
        except TimeoutError as error:
            raise EngineStartError(
                f"{spec.model}: not ready after {timeout_s:g} s; raise start_timeout_s or use a "
                "faster disk"
            ) from error
        except ConnectionClosed as error:
            raise EngineStartError(f"{spec.model}: {await self.describe_end()}") from error
        assert not isinstance(event, StepReport)
        self._is_loaded = True
        return event

    def send(self, command: RankCommand) -> None:
        assert self._connection is not None
        self._connection.send(self._encode(command))

    async def receive(self) -> StepReport:
        """The next step's report. Raises ``ConnectionClosed`` when the process is gone or gave
        up.
        """
        event = await self._receive()
        assert isinstance(event, StepReport)
        return event

    async def describe_end(self) -> str:
        """Why ``receive`` raised: the process's last words, or how it ended."""
        if self._last_words is not None:
            return self._last_words
        await self._wait(_END_TIMEOUT_S)
        if self.is_running:
            return f"{self.name} closed its pipe without ending"
        code = self._process.exit_code if self._process is not None else None
        if code is None:
            return f"{self.name} ended; how is not known, since the node's forge ended before"
        if code == -signal.SIGKILL:
            return f"{self.name} was killed: too little memory for model and KV pool?"
        if code < 0:
            return f"{self.name} died by {signal.Signals(-code).name}"
        return f"{self.name} ended with exit status {code}; its log says why"

    def kill(self) -> None:
        """End the process at once, also a stopped one."""
        if self._process is not None:
            self._process.kill()

    async def stop(self, grace_s: float) -> None:
        """End the process, by force if it has not gone by itself after ``grace_s``."""
        if self._socket is not None:
            self._socket.close()
        if self._connection is not None:
            self._connection.close("the front stops")
        if self._is_loaded:  # while it loads it does not look at the pipe
            await self._wait(grace_s)
        self.kill()
        await self._wait(_END_TIMEOUT_S)

    def _new_pipe(self) -> socket.socket:
        """The process's end."""
        if self._socket is not None:
            self._socket.close()
        self._socket, theirs = socket.socketpair()
        return theirs

    async def _receive(self) -> Ready | Loaded | StepReport:
        assert self._connection is not None
        event = self._decode(await self._connection.receive())
        if isinstance(event, Failed):
            self._last_words = event.message
            raise ConnectionClosed(event.message)
        return event

    async def _wait(self, timeout_s: float) -> None:
        for _ in range(round(timeout_s / _POLL_S)):
            if not self.is_running:
                return
            await asyncio.sleep(_POLL_S)
