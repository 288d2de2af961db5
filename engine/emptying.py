"""Gets all requests out of an engine that leaves or goes to sleep, and what it keeps to its node.

No more credits; who runs ends, or is handed over to other replicas after a while; then prefixes
that only the accelerator keeps go to the node's cache. Must not know gateways, nor why.
"""

import asyncio
import logging
from collections.abc import Callable

from engine.credits import CreditLedger
from engine.rank_messages import HandOver, RankCommand, StoreKept

logger = logging.getLogger(__name__)

SETTLE_S = 1.0
"""Credits that are out at the begin can be used for so long: submits are on their way."""
STORE_KEPT_LIMIT_S = 5.0
"""For storing what the accelerator keeps, when the last request has ended."""
_POLL_S = 0.05


class Emptying:
    """Call order: ``run``, then ``store_kept``."""

    def __init__(
        self,
        ledger: CreditLedger,
        send: Callable[[RankCommand], None],
        *,
        has_node_cache: bool,
        can_hand_over: Callable[[], bool],
    ) -> None:
        """``send``: to the step loop. ``can_hand_over``: others could go on, as things are now."""
        self._ledger = ledger
        self._send = send
        self._has_node_cache = has_node_cache
        self._can_hand_over = can_hand_over
        self._store_number = 0
        self._kept_stored = asyncio.Event()

    async def run(
        self,
        *,
        hand_over_after_s: float | None,
        is_off: Callable[[], bool],
        settle_s: float = SETTLE_S,
        grace_s: float | None = None,
        has_replacement: Callable[[], bool] = lambda: True,
    ) -> bool:
        """Grant nothing more and wait until no request is here; whether that came to be before
        ``grace_s`` was over or ``is_off`` said so.

        With ``hand_over_after_s`` those that wait inside are handed over at once, as are those that
        come, and those that run then; None: all of them end here, as they do while nobody could go
        on with them, or ``has_replacement`` says no. Who comes after the last one is handed over in
        any case.
        """
        now_s = asyncio.get_running_loop().time
        started_s = now_s()
        self._ledger.stop_granting()
        is_told = hand_over_after_s is not None and self._can_hand_over() and has_replacement()
        if is_told:
            self._send(HandOver(only_waiting=True))
        while not is_off():
            passed_s = now_s() - started_s
            is_settled = self._ledger.num_granted == 0 or passed_s > settle_s
            if self._ledger.num_in_flight == 0 and is_settled:
                if not is_told:
                    self._send(HandOver(only_waiting=True))
                return True
            if grace_s is not None and passed_s > grace_s:
                break
            is_due = hand_over_after_s is not None and passed_s >= hand_over_after_s
            if is_due and self._can_hand_over() and has_replacement():
                hand_over_after_s, is_told = None, True
                self._send(HandOver(only_waiting=False))
            await asyncio.sleep(_POLL_S)
        return False

    async def store_kept(self) -> None:
        """Let the node's cache have the prefixes that only this replica holds."""
        if not self._has_node_cache:
            return
        self._kept_stored.clear()
        self._store_number += 1
        self._send(StoreKept(self._store_number))
        try:
            await asyncio.wait_for(self._kept_stored.wait(), STORE_KEPT_LIMIT_S)
        except TimeoutError:
            logger.warning(
                "not all cached prefixes were stored in %.0f s, the rest is lost",
                STORE_KEPT_LIMIT_S,
            )

    def kept_stored(self, number: int) -> None:
        """The step loop says that this ``StoreKept`` is done: it may be one that was cut short."""
        if number == self._store_number:
            self._kept_stored.set()

    def stop_storing(self) -> None:
        """Nobody wants to wait for it any more."""
        self._kept_stored.set()
