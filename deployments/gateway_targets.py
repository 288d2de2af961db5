"""Where all gateways, and the autoscaler beside them, serve their own metrics: each is asked,
through Serve, when that is needed.

Serve tells a deployment's metadata to those who call it only, and nobody calls an ingress behind
HAProxy; so the gateways ask each other by a broadcast, which takes milliseconds. One gateway that
does not answer costs the whole result: what was known before stays until Serve has replaced it.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from app.fleet_metrics import ScrapeTarget

logger = logging.getLogger(__name__)

MAX_AGE_S = 2.0
"""An older list is asked for again."""
MAX_WAIT_S = 0.2
"""Whoever needs the list waits so long for a new one; a page must take less than a second."""
ASK_TIMEOUT_S = 0.5

AskGateways = Callable[[], Awaitable[Sequence[Any]]]
"""What each gateway's `to_metadata` says, or the exception that its call ended with."""


def to_metadata(target: ScrapeTarget) -> dict[str, Any]:
    """Plain values, for Serve."""
    return {
        "replica": target.replica,
        "role": target.role,
        "host": target.host,
        "port": target.port,
    }


class GatewayTargets:
    """The last list, renewed on demand."""

    def __init__(
        self, own: ScrapeTarget, ask: AskGateways, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._own = own
        self._ask = ask
        self._clock = clock
        self._known = {own.replica: own}
        self._asked_s: float | None = None
        self._asking: asyncio.Task[None] | None = None

    async def targets(self) -> list[ScrapeTarget]:
        """Never raises; this gateway's own is in it in any case."""
        is_old = self._asked_s is None or self._clock() - self._asked_s > MAX_AGE_S
        if self._asking is None and is_old:
            self._asking = asyncio.create_task(self._renew())
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=MAX_WAIT_S)
        return list(self._known.values())

    async def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait({self._asking})

    async def _renew(self) -> None:
        try:
            async with asyncio.timeout(ASK_TIMEOUT_S):
                answers = await self._ask()
        except Exception as error:
            logger.warning("the gateways' scrape ports are as they were before: %r", error)
        else:
            found = {self._own.replica: self._own}
            for answer in answers:
                if isinstance(answer, Mapping):
                    found[answer["replica"]] = ScrapeTarget(
                        answer["replica"], answer["role"], answer["host"], answer["port"]
                    )
            is_whole = not any(isinstance(answer, BaseException) for answer in answers)
            self._known = found if is_whole else self._known | found
        finally:
            self._asked_s = self._clock()
            self._asking = None
