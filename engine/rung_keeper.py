"""Takes a replica down and up the warm ladder, between SERVING and PARKED, as it is ordered.

    SERVING ──▶ no credits, requests end or move ──▶ prefixes to the node ──▶ pool freed: PARKED
       ▲── an order to wake: it serves again ──┴──────────────┘                  │
       └────────────── pool allocated, credits again ◀───────────────────────────┘

One move at a time, towards what was ordered last; a move that an order overtakes is turned back, or
done and then undone. Lives on one event loop, in the engine's front. Must not know gateways, nor
what the ranks do to sleep.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from cache_tiers.rung import Rung
from engine.credits import CreditLedger
from engine.emptying import Emptying
from engine.errors import ProtocolError
from engine.rank_messages import RankCommand, RungChange, Sleep, Stay, Wake
from engine.rung_messages import RungOrder, RungState

logger = logging.getLogger(__name__)

EPOCH_LAPSES_S = 10.0
"""After the last order of an epoch an earlier one is believed: whoever decides may have started
again with a clock that was set back."""


@dataclass(slots=True)
class RungCounts:
    """Since start."""

    num_sleeps: int = 0
    num_wakes: int = 0
    num_failed_wakes: int = 0


class RungKeeper:
    """Owner of ``state``. Call order: ``order`` and ``changed`` as they come, ``stop``, ``close``
    in any case.
    """

    def __init__(
        self,
        ledger: CreditLedger,
        emptying: Emptying,
        send: Callable[[RankCommand], None],
        tell: Callable[[RungState], None],
        *,
        hand_over_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``send``: to the step loop. ``tell``: all gateways; when the state that is told serves,
        credits can be granted. ``hand_over_after_s``: that running requests have to end.
        """
        self._ledger = ledger
        self._emptying = emptying
        self._send = send
        self._tell = tell
        self._hand_over_after_s = hand_over_after_s
        self._clock = clock
        self._newest: tuple[int, int] | None = None
        """Epoch and sequence of the order that holds."""
        self._heard_s = 0.0
        """When it came."""
        self._target = Rung.SERVING
        self._mover: asyncio.Task[None] | None = None
        self._change: asyncio.Future[RungChange] | None = None
        """That the step loop is to tell."""
        self._is_stopped = False
        self.state = RungState(Rung.SERVING)
        self.counts = RungCounts()

    def order(self, order: RungOrder) -> None:
        """The newest one holds, whichever comes last, as long as its epoch does not lapse. Raises
        ``ProtocolError``.
        """
        if order.rung not in (Rung.PARKED, Rung.SERVING):
            raise ProtocolError(f"a running replica can't be {order.rung.name}")
        if self._is_stopped or self._is_outdated(order):
            return
        self._newest, self._heard_s = (order.epoch, order.sequence), self._clock()
        self._target = order.rung
        if self._target is Rung.SERVING:
            self._emptying.stop_storing()
        if self._mover is None and self._target is not self.state.rung:
            self._mover = asyncio.create_task(self._move(), name="move between rungs")

    def changed(self, change: RungChange) -> None:
        """The step loop says where it stands."""
        if self._change is not None and not self._change.done():
            self._change.set_result(change)

    def stop(self) -> None:
        """The replica leaves, or is lost: no more orders. A move that the ranks have begun comes to
        its end, but changes nothing.
        """
        self._is_stopped = True

    async def close(self) -> None:
        """Fine at any time."""
        self.stop()
        if self._mover is not None:
            self._mover.cancel()
            with suppress(asyncio.CancelledError):
                await self._mover

    def _is_outdated(self, order: RungOrder) -> bool:
        if self._newest is None or (order.epoch, order.sequence) > self._newest:
            return False
        is_same_epoch = order.epoch == self._newest[0]
        return is_same_epoch or self._clock() - self._heard_s <= EPOCH_LAPSES_S

    async def _move(self) -> None:
        try:
            while not self._is_stopped and self._target is not self.state.rung:
                if self._target is Rung.PARKED:
                    await self._sleep()
                elif not await self._wake():
                    break  # the next order tries again
        finally:
            self._mover = None

    async def _sleep(self) -> None:
        started_s = self._clock()
        self._show(is_moving=True)
        is_empty = await self._emptying.run(
            hand_over_after_s=self._hand_over_after_s, is_off=self._is_sleep_off
        )
        if is_empty:
            await self._emptying.store_kept()
        if self._is_stopped:
            return
        if self._target is not Rung.PARKED:
            self._send(Stay())
            self._serve(self.state.wake_s)
            return
        await self._change_to(Sleep())
        self.counts.num_sleeps += 1
        self.state = msgspec.structs.replace(
            self.state, rung=Rung.PARKED, sleep_s=self._clock() - started_s
        )
        self._show(is_moving=False)

    async def _wake(self) -> bool:
        started_s = self._clock()
        self._show(is_moving=True)
        change = await self._change_to(Wake())
        if change.failure is not None:
            self.counts.num_failed_wakes += 1
            logger.warning("the replica can't wake: %s", change.failure)
            self._show(is_moving=False)
            return False
        self.counts.num_wakes += 1
        self.state = msgspec.structs.replace(self.state, rung=Rung.SERVING)
        if not self._is_stopped:
            self._serve(self._clock() - started_s)
        return True

    def _serve(self, wake_s: float) -> None:
        self._ledger.resume_granting()
        self.state = msgspec.structs.replace(self.state, wake_s=wake_s)
        self._show(is_moving=False)

    def _is_sleep_off(self) -> bool:
        return self._is_stopped or self._target is not Rung.PARKED

    def _show(self, *, is_moving: bool) -> None:
        self.state = msgspec.structs.replace(self.state, is_moving=is_moving)
        if not self._is_stopped:
            self._tell(self.state)

    async def _change_to(self, command: Sleep | Wake) -> RungChange:
        self._change = asyncio.get_running_loop().create_future()
        self._send(command)
        return await self._change
