"""Whether a replica that leaves has another one to hand its requests to."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Self

from ray import serve

logger = logging.getLogger("ray.serve")

ASK_TIMEOUT_S = 5.0
PERIOD_S = 5.0
_RUNNING = "RUNNING"


async def has_successor(application: str, deployment: str) -> bool:
    """Another replica of the deployment runs, by what Serve says now. When all of an application
    stops, none does: all of them leave at once. If Serve doesn't answer, nobody knows of one.
    """
    try:
        async with asyncio.timeout(ASK_TIMEOUT_S):
            status = await asyncio.to_thread(serve.status)
        states = status.applications[application].deployments[deployment].replica_states
        return any(str(state) == _RUNNING and number > 0 for state, number in states.items())
    except Exception as error:
        logger.warning(
            "running requests are finished here, as no other replica is known: %r", error
        )
        return False


class SuccessorWatch:
    """Asks as it is entered, and again until there is one: the last replica on a node that goes
    away leaves before the one in its place runs. Async context manager.
    """

    def __init__(self, ask: Callable[[], Awaitable[bool]], *, period_s: float = PERIOD_S) -> None:
        self.is_known = False
        self._ask = ask
        self._period_s = period_s
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.is_known = await self._ask()
        if not self.is_known:
            self._task = asyncio.create_task(self._look_out(), name="look out for a successor")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _look_out(self) -> None:
        while not self.is_known:
            await asyncio.sleep(self._period_s)
            self.is_known = await self._ask()
