"""Engines under one interface for the fuzz: in this process, or a group of rank processes.

Must not know what they are asked, nor what is done to their nodes.
"""

import asyncio
import contextlib
import os
import signal
from typing import Protocol

import msgspec

from deployments.offline_engine import create_engine
from engine.config import EngineSpec
from engine.engine import Engine
from engine.errors import EngineDeadError
from engine.messages import Abort, EngineRequest, StepFrame, Submit, TokenDelta
from engine.observations import TierStats
from engine.rank_group import RankGroup
from engine.rank_messages import FromGateway, StoreKept
from engine.runner import create_runner
from engine.tier_setup import use_node_cache
from wire.pipe import wait_any

_SOURCE = 1
_WAIT_S = 0.001


class FuzzEngine(Protocol):
    """Call order: ``start``, the others, ``close``; then again from ``start`` on."""

    async def start(self) -> None: ...

    def submit(self, request: EngineRequest) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def store_kept(self) -> None:
        """As before it is drained."""

    async def deltas(self) -> list[TokenDelta]:
        """Of the next step, or none after a moment. Raises ``EngineDeadError``."""
        ...

    @property
    def stats(self) -> TierStats:
        """Of this life."""
        ...

    async def close(self, *, is_killed: bool = False) -> None:
        """What it was asked is lost, if anything is left."""
        ...


class LocalEngine:
    """One rank, stepped here."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._engine: Engine | None = None

    async def start(self) -> None:
        loaded = create_runner(self._spec)
        self._engine = create_engine(loaded, self._spec.config)
        use_node_cache(self._engine, self._spec, loaded, loaded.runner)

    def submit(self, request: EngineRequest) -> None:
        self._running.add(request)

    def abort(self, request_id: str) -> None:
        self._running.abort(request_id)

    def store_kept(self) -> None:
        self._running.store_kept()

    async def deltas(self) -> list[TokenDelta]:
        engine = self._running
        engine.poll_tiers()
        if engine.has_work:
            deltas = engine.step().deltas
            engine.check_integrity()
            return deltas
        if engine.tiers is not None and engine.tiers.pipe is not None:
            wait_any((engine.tiers.pipe,), _WAIT_S)
        return []

    @property
    def stats(self) -> TierStats:
        return self._running.stats.tiers or TierStats()

    async def close(self, *, is_killed: bool = False) -> None:
        """A killed one looks to its node as one that closes amid its work: its socket ends."""
        self._running.close()
        self._engine = None

    @property
    def _running(self) -> Engine:
        assert self._engine is not None
        return self._engine


class GroupEngine:
    """Several ranks, a process each."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._group = RankGroup()
        self._reports: asyncio.Task[None] | None = None
        self._deltas: asyncio.Queue[list[TokenDelta]] = asyncio.Queue()
        self._stats = TierStats()

    async def start(self) -> None:
        self._group = RankGroup()
        self._stats, self._deltas = TierStats(), asyncio.Queue()
        await self._group.start(self._spec)
        self._reports = asyncio.create_task(self._receive())

    def submit(self, request: EngineRequest) -> None:
        self._send(Submit(request))

    def abort(self, request_id: str) -> None:
        self._send(Abort(request_id))

    def store_kept(self) -> None:
        self._group.send(StoreKept(1))

    async def deltas(self) -> list[TokenDelta]:
        assert self._reports is not None
        if self._reports.done():
            raise EngineDeadError(await self._group.describe_end())  # nobody killed it
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_S):
                return await self._deltas.get()
        return []

    @property
    def stats(self) -> TierStats:
        return self._stats

    async def close(self, *, is_killed: bool = False) -> None:
        if self._reports is not None:
            self._reports.cancel()
            await asyncio.gather(self._reports, return_exceptions=True)
        if is_killed:
            for pid in self._group.pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        await self._group.stop()

    def _send(self, message: Submit | Abort) -> None:
        self._group.send(FromGateway(_SOURCE, msgspec.msgpack.encode(message)))

    async def _receive(self) -> None:
        while True:
            report = await self._group.receive()
            if report.stats.tiers is not None:
                self._stats = report.stats.tiers
            for frame in report.frames:
                step = msgspec.msgpack.decode(frame.payload, type=StepFrame)
                self._deltas.put_nowait(step.deltas)
