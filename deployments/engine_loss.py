"""What an engine replica does when it loses its engine: it cleans up and ends its own process.

Serve replaces a replica whose process is gone after one health check, and one that fails health
checks after three. Must not know why an engine is lost.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from typing import Protocol

from engine.errors import EngineDeadError

logger = logging.getLogger("ray.serve")

WATCH_PERIOD_S = 0.1
"""Of looking whether the engine is lost, which costs a few comparisons."""
CLOSE_TIMEOUT_S = 1.5
"""Longest wait for the front to close: its processes end with this one in any case."""
EXIT_STATUS = 1


class Front(Protocol):
    """What is needed of an `EngineFront`."""

    def check_health(self) -> None:
        """Raises `EngineDeadError` with the reason when the engine is lost."""

    async def close(self) -> None: ...


class Folder(Protocol):
    """What is needed of a `PrivateDir`."""

    def remove(self) -> None: ...


async def leave_when_lost(
    engine_id: str,
    front: Front,
    folder: Folder,
    *,
    close_timeout_s: float = CLOSE_TIMEOUT_S,
    leave: Callable[[int], None] = os._exit,  # waits for no thread, least of all for one of Ray
) -> None:
    """Wait until `front` has lost its engine, then close it, remove `folder` and end the process.

    Closing the front closes its connections, so that gateways move their requests to other replicas
    without waiting for Serve.
    """
    reason = await _reason_of_loss(front)
    logger.error("engine %s is lost and its replica leaves: %s", engine_id, reason)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(front.close(), close_timeout_s)
        folder.remove()
    except Exception:
        logger.exception("engine %s: not all that it leaves could be cleaned up", engine_id)
    finally:
        leave(EXIT_STATUS)


async def _reason_of_loss(front: Front) -> str:
    while True:
        try:
            front.check_health()
        except EngineDeadError as error:
            return str(error)
        await asyncio.sleep(WATCH_PERIOD_S)
