"""The loop of every rank but 0: takes plans from rank 0 and carries them out.

Rank 0 alone samples; its tokens come with the plan that first reads them. The front only hears that
this loop goes round. Must not know the model or what the plans are for.
"""

import time

import msgspec

from engine.garbage import GarbageCollector
from engine.rank_messages import PlanFrame
from engine.step import ModelRunner
from engine.step_loop import IDLE_POLL_S
from wire.pipe import SyncPipe

MIN_HEARTBEAT_PERIOD_S = IDLE_POLL_S / 2
"""The front need not wake up for every step of every rank."""


class FollowerLoop:
    """Owner of the ends of two pipes: to rank 0, and to the front."""

    def __init__(
        self,
        runner: ModelRunner,
        *,
        leader: SyncPipe,
        front: SyncPipe,
        garbage: GarbageCollector | None = None,
    ) -> None:
        self._runner = runner
        self._garbage = garbage or GarbageCollector()
        self._leader = leader
        self._front = front
        self._last_heartbeat_s = 0.0
        self._decode = msgspec.msgpack.Decoder(PlanFrame).decode

    def run(self) -> None:
        """Go round until one of the pipes closes, which raises ``ConnectionClosed``.

        What the runner raises ends the loop, too: this rank is out of step then.
        """
        while True:
            self.turn()

    def turn(self) -> None:
        """Carry out the plans that came; wait for some if there are none."""
        for frame in self._leader.poll(IDLE_POLL_S):
            step = self._decode(frame)
            self._runner.take_sampled(step.sampled)
            self._runner.execute(step.plan)
            self._show_life()
            self._garbage.collect_between_steps()
        self._show_life()

    def _show_life(self) -> None:
        now_s = time.monotonic()
        if now_s - self._last_heartbeat_s >= MIN_HEARTBEAT_PERIOD_S:
            self._last_heartbeat_s = now_s
            self._front.send_heartbeat()
