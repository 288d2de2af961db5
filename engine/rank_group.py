"""The front's handle of all rank processes of one replica: they start, run and end together.

A rank that is lost leaves the others in a collective that never ends, so the group ends as a whole
and says why. Rank 0 runs the step loop; it is the one that is sent commands and that reports. Must
not know what is said. Imports no torch.
"""

import asyncio
import contextlib
import shutil
import socket
import tempfile
from pathlib import Path

from engine.config import EngineSpec, RankSpec
from engine.errors import EngineDeadError
from engine.rank_messages import RankCommand, Ready, StepReport
from engine.rank_process import RANK_MODULE, RankProcess
from wire.errors import ConnectionClosed

MAX_SILENCE_S = 30.0
"""A loop that did not go round for so long is stuck; far above the longest step."""
STOPPED_SILENCE_S = 2.0
"""A process that was stopped (SIGSTOP) is lost after so long: twice the period of heartbeats."""
EXIT_GRACE_S = 5.0
"""Longest wait for a step to end when the group is asked to stop."""
_WATCH_PERIOD_S = 0.5
_BLAME_DELAY_S = 0.1
"""When one rank dies the others fail as well, some sooner than its end is seen."""


class RankGroup:
    """Call order: ``start``, then ``send`` and ``receive``, then ``stop`` in any case."""

    def __init__(
        self,
        *,
        max_silence_s: float = MAX_SILENCE_S,
        folder: Path | None = None,
        rank_module: str = RANK_MODULE,
    ) -> None:
        """Several ranks meet in a private folder below ``folder``, or the one for temporary files;
        ``stop`` removes it. ``rank_module`` is what Python runs for each.
        """
        self._rank_module = rank_module
        self._max_silence_s = max_silence_s
        self._folder = folder
        self._ranks: list[RankProcess] = []
        self._rendezvous: Path | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_started = False
        self._failure: str | None = None

    @property
    def pid(self) -> int:
        """Process id of the step loop."""
        return self._ranks[0].pid

    @property
    def pids(self) -> list[int]:
        """Process ids in the order of ranks."""
        return [rank.pid for rank in self._ranks]

    @property
    def is_running(self) -> bool:
        """Whether it was started, and no rank is known to be lost."""
        return self._is_started and self._failure is None

    @property
    def silence_s(self) -> float:
        """Time since the most silent of the loops last went round, as far as it said."""
        return max(rank.silence_s for rank in self._ranks)

    async def start(self, spec: EngineSpec) -> Ready:
        """Start all ranks and wait until the model is loaded and warm.

        Raises ``EngineStartError`` with what the first rank that failed has to say. Call from a
        thread that lives as long as the processes shall (``RankProcess.spawn``).
        """
        size = spec.config.tensor_parallel_size
        self._ranks = [RankProcess(RankSpec(rank, size), self._rank_module) for rank in range(size)]
        self._spawn(spec.forge_socket)
        loads = [asyncio.create_task(rank.load(spec)) for rank in self._ranks]
        try:
            ready, *_ = await asyncio.gather(*loads)
        except BaseException:
            for load in loads:
                load.cancel()
            await asyncio.gather(*loads, return_exceptions=True)
            for rank in self._ranks:  # they may hang in a rendezvous
                rank.kill()
            raise
        assert isinstance(ready, Ready)
        listeners = [asyncio.create_task(self._listen(rank)) for rank in self._ranks[1:]]
        self._tasks = [asyncio.create_task(self._watch(), name="watch ranks"), *listeners]
        self._is_started = True
        return ready

    def send(self, command: RankCommand) -> None:
        """To the step loop."""
        self._ranks[0].send(command)

    async def receive(self) -> StepReport:
        """The next step's report. Raises ``ConnectionClosed`` when any rank is lost."""
        try:
            return await self._ranks[0].receive()
        except ConnectionClosed:
            await self._lose(self._ranks[0])
            raise

    async def describe_end(self) -> str:
        """Why ``receive`` raised, in one line."""
        assert self._failure is not None, "all ranks are well"
        return self._failure

    def check(self) -> None:
        """Raises ``EngineDeadError`` with the reason when a rank is lost."""
        if self._failure is not None:
            raise EngineDeadError(self._failure)

    async def stop(self) -> None:
        """End all processes, by force if they do not go by themselves; fine at any time."""
        self._is_started = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        grace_s = EXIT_GRACE_S if self._failure is None else 0.0
        for rank in self._ranks[:1]:
            await rank.stop(grace_s)
            grace_s = 0.0 if rank.was_killed else grace_s  # else its end is theirs
        await asyncio.gather(*(rank.stop(grace_s) for rank in self._ranks[1:]))
        if self._rendezvous is not None:
            shutil.rmtree(self._rendezvous, ignore_errors=True)

    def _spawn(self, forge: Path | None) -> None:
        """Rank 0 gets one end of a socket pair to each of the others, which get the other end."""
        followers = self._ranks[1:]
        if followers:
            self._rendezvous = Path(tempfile.mkdtemp(prefix="ranks-", dir=self._folder))
        with contextlib.ExitStack() as stack:
            links = [tuple(map(stack.enter_context, socket.socketpair())) for _ in followers]
            self._ranks[0].spawn([leader for leader, _ in links], self._rendezvous, forge)
            if not self._ranks[0].is_forged:  # one wait for a forge that hangs is enough
                forge = None
            for rank, (_, follower) in zip(followers, links, strict=True):
                rank.spawn([follower], self._rendezvous, forge)

    async def _listen(self, follower: RankProcess) -> None:
        """A follower reports nothing until it fails."""
        with contextlib.suppress(ConnectionClosed):
            await follower.receive()
        await self._lose(follower)

    async def _lose(self, rank: RankProcess) -> None:
        """``rank`` ended or failed, perhaps because another one did."""
        await asyncio.sleep(_BLAME_DELAY_S)
        if self._failure is None:
            killed = [rank for rank in self._ranks if rank.was_killed]
            reason = await (killed[0] if killed else rank).describe_end()
            self._fail(reason)

    async def _watch(self) -> None:
        """Find a rank that is stopped or stuck. One in a long step is silent too, but runs."""
        while self._failure is None:
            await asyncio.sleep(_WATCH_PERIOD_S)
            for rank in self._ranks:
                if rank.silence_s > STOPPED_SILENCE_S and rank.is_stopped:
                    self._fail(f"{rank.name} was stopped (SIGSTOP)")
                elif rank.silence_s > self._max_silence_s:
                    self._fail(f"{rank.name} has been stuck for {rank.silence_s:.0f} s")

    def _fail(self, reason: str) -> None:
        """End the group: the pipe of the step loop closes, which tells the front."""
        if self._failure is None:
            self._failure = reason
            for rank in self._ranks:
                rank.kill()
