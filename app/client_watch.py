"""Ends the work for a client that went away. Knows ASGI's ``receive`` only."""

import asyncio
import logging
from collections.abc import Callable, Coroutine

from starlette.types import Receive

from app.requests.body import ClientGoneError

logger = logging.getLogger(__name__)

Gone = asyncio.Future[None]
"""Resolved when the client is gone, or is to be treated so."""


async def run_while_connected(
    receive: Receive, work: Callable[[Gone], Coroutine[None, None, None]]
) -> None:
    """Run ``work``; cancel it and raise ``ClientGoneError`` when the client disconnects.

    Precondition: the request's body was read. ``work`` may resolve what it is given to cut the
    client itself.
    """
    gone: Gone = asyncio.get_running_loop().create_future()
    watcher = asyncio.create_task(_watch(receive, gone))
    task = asyncio.create_task(work(gone))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        task.result()
    finally:
        watcher.cancel()
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled():
                task.exception()


async def _watch(receive: Receive, gone: Gone) -> None:
    try:
        while (await receive())["type"] != "http.disconnect":
            pass
    except Exception as error:  # a server that cannot tell any more has lost the client
        logger.warning("the connection to a client failed: %s", type(error).__name__)
    if not gone.done():
        gone.set_result(None)
