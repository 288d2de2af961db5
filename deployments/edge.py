"""Middleware in front of Serve's own HTTP code: what a client may not decide.

Serve lets a request set its own timeout and switch off the detection of its disconnect. Either
would keep an answer running that nobody reads, so both headers are removed before Serve sees them:
in its proxy, and in the port each gateway replica opens for HAProxy. Serve loads `middlewares`
where `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` names it. Imports nothing of ours.
"""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

STRIPPED_HEADERS = frozenset({b"x-request-timeout-seconds", b"x-request-disconnect-disabled"})


class StripServeHeaders:
    """Pure ASGI: drops `STRIPPED_HEADERS` from every HTTP and WebSocket request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            headers = [item for item in scope["headers"] if item[0] not in STRIPPED_HEADERS]
            scope = {**scope, "headers": headers}
        await self._app(scope, receive, send)


def middlewares() -> list[Middleware]:
    """What Serve puts around its HTTP servers."""
    return [Middleware(StripServeHeaders)]
