"""Serves one replica's own metrics, and what else it has to say of itself, on a port that no other
replica shares.

The port is whichever is free: Prometheus finds all of them in the gateway's `/metrics/targets`, so
that no range needs to be set aside. It has no keys, hence listens on the node's private address
only. Must not know what is on the pages.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web

from app.metrics import CONTENT_TYPE

logger = logging.getLogger(__name__)

_SHUTDOWN_TIMEOUT_S = 0.5
_KEEP_ALIVE_S = 75.0


Page = Callable[[Mapping[str, str]], Awaitable[bytes]]
"""JSON against the query; raises `ValueError` for a query that it doesn't take."""


class ScrapeServer:
    """Lives on the event loop that starts it, the one that `render` is safe on."""

    def __init__(
        self, render: Callable[[], bytes], *, host: str, pages: Mapping[str, Page] | None = None
    ) -> None:
        """``pages``: beside the metrics, by their path."""
        self._render = render
        self._host = host
        application = web.Application(client_max_size=1024)
        application.router.add_get("/metrics", self._answer)
        for path, page in (pages or {}).items():
            application.router.add_get(path, _answer_with(page))
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handle_signals=False,
            keepalive_timeout=_KEEP_ALIVE_S,
            shutdown_timeout=_SHUTDOWN_TIMEOUT_S,
        )

    async def start(self, port: int = 0) -> int:
        """The port: `port` if it is free. Raises `OSError` if the host is not this machine's."""
        await self._runner.setup()
        try:
            await self._listen(port)
        except OSError:
            await self._runner.cleanup()
            raise
        listening_port: int = self._runner.addresses[0][1]
        return listening_port

    async def close(self) -> None:
        """Fine at any time, even twice."""
        await self._runner.cleanup()

    async def _listen(self, port: int) -> None:
        try:
            await web.TCPSite(self._runner, self._host, port, reuse_address=True).start()
        except OSError:
            if port == 0:
                raise
            await web.TCPSite(self._runner, self._host, 0).start()

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            page = self._render()
        except Exception:
            logger.exception("the metrics could not be rendered")
            raise web.HTTPInternalServerError(text="the metrics could not be rendered") from None
        return web.Response(body=page, headers={"content-type": CONTENT_TYPE})


def _answer_with(page: Page) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        try:
            body = await page(request.query)
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        except Exception:
            logger.exception("%s could not be answered", request.path)
            raise web.HTTPInternalServerError(text="it could not be answered") from None
        return web.Response(body=body, content_type="application/json")

    return answer
