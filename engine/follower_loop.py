"""The loop of every rank but 0: takes plans from rank 0 and carries them out.

Rank 0 alone samples; its tokens come with the plan that first reads them. The front only hears that
this loop goes round. Must not know the model or what the plans are for.
"""

import time
from typing import Protocol

import msgspec

from cache_tiers.block_image import ImageLayout
from cache_tiers.tier import TierError
from engine.errors import KvMemoryError
from engine.garbage import GarbageCollector
from engine.kv_memory import ReplicaRunner
from engine.rank_messages import (
    AllocateKv,
    FreeKv,
    FromLeader,
    JoinArena,
    Joined,
    KvDone,
    LeaveArena,
    PlanFrame,
    Transferred,
)
from engine.step_loop import IDLE_POLL_S
from wire.pipe import SyncPipe

MIN_HEARTBEAT_PERIOD_S = IDLE_POLL_S / 2
"""The front need not wake up for every step of every rank."""


class RankArena(Protocol):
    """Maps the arena of the node's cache."""

    def open(self, layout: ImageLayout, socket_path: str) -> memoryview:
        """In place of the one before. Raises ``TierError``."""
        ...

    def close(self) -> None:
        """Idempotent; nobody uses it any more."""


class FollowerLoop:
    """Owner of the ends of two pipes: to rank 0, and to the front."""

    def __init__(
        self,
        runner: ReplicaRunner,
        *,
        leader: SyncPipe,
        front: SyncPipe,
        arena: RankArena,
        garbage: GarbageCollector | None = None,
    ) -> None:
        self._runner = runner
        self._garbage = garbage or GarbageCollector()
        self._leader = leader
        self._front = front
        self._last_heartbeat_s = 0.0
        self._arena = arena
        self._decode = msgspec.msgpack.Decoder(FromLeader).decode
        self._encode = msgspec.msgpack.Encoder().encode

    def run(self) -> None:
        """Go round until one of the pipes closes, which raises ``ConnectionClosed``.

        What the runner raises ends the loop, too: this rank is out of step then.
        """
        while True:
            self.turn()

    def turn(self) -> None:
        """Carry out the plans that came; wait for some if there are none."""
        for frame in self._leader.poll(IDLE_POLL_S):
            message = self._decode(frame)
            match message:
                case PlanFrame():
                    self._execute(message)
                case JoinArena():
                    self._leader.send(self._encode(self._join(message)))
                case LeaveArena():
                    self._runner.detach_arena()
                    self._arena.close()
                case FreeKv():
                    self._runner.free_kv()
                    self._leader.send(self._encode(KvDone()))
                case AllocateKv():
                    self._leader.send(self._encode(self._allocate_kv()))
            self._show_life()
            self._garbage.collect_between_steps()
        self._show_life()

    def _execute(self, step: PlanFrame) -> None:
        self._runner.take_sampled(step.sampled)
        result = self._runner.execute(step.plan)
        if step.plan.moves_kv:
            answer = Transferred(result.step_id, result.failed_loads)
            self._leader.send(self._encode(answer))

    def _join(self, message: JoinArena) -> Joined:
        try:
            arena = self._arena.open(message.layout, message.socket_path)
            self._runner.attach_arena(arena, message.layout, message.socket_path)
        except TierError as error:
            return Joined(str(error))
        return Joined()

    def _allocate_kv(self) -> KvDone:
        try:
            self._runner.allocate_kv()
        except KvMemoryError as error:
            return KvDone(str(error))
        return KvDone()

    def _show_life(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_heartbeat_s >= MIN_HEARTBEAT_PERIOD_S:
            self._last_heartbeat_s = now_s
            self._front.send_heartbeat()
