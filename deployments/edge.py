"""What stands around the gateway's app: a client may not steer Serve by its request's headers.

Serve lets a request set its own timeout and switch off the detection of its disconnect. Either
would keep an answer running that nobody reads, so `middlewares` removes both headers before Serve
sees them: in its proxy, and in the port each gateway replica opens for HAProxy. Serve loads them
where `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` names them; `headwater serve` sets it, and on a
cluster it belongs into every node's environment. (`controller_options` in the YAML would do for
Serve's proxy, but then no process can use a worker that Ray started ahead: 3 s more to start.)
Where nobody set it, `RefuseUnwatched` still refuses what would run on unwatched; the timeout then
only harms the request that asked for it. Imports nothing of ours.
"""

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

UNWATCHED_HEADER = b"x-request-disconnect-disabled"
STRIPPED_HEADERS = frozenset({b"x-request-timeout-seconds", UNWATCHED_HEADER})


class StripServeHeaders:
    """Pure ASGI: drops `STRIPPED_HEADERS` from every HTTP and WebSocket request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            headers = [item for item in scope["headers"] if item[0] not in STRIPPED_HEADERS]
            scope = {**scope, "headers": headers}
        await self._app(scope, receive, send)


class RefuseUnwatched:
    """Pure ASGI: 400 for a request whose disconnect Serve was told to ignore."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (UNWATCHED_HEADER, b"?1") in scope["headers"]:
            name = UNWATCHED_HEADER.decode("ascii")
            refusal = {
                "message": f"The header '{name}' is not accepted here. Leave it out.",
                "type": "invalid_request_error",
                "param": name,
                "code": "header_not_accepted",
            }
            await JSONResponse({"error": refusal}, 400)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def middlewares() -> list[Middleware]:
    """What Serve puts around its HTTP servers."""
    return [Middleware(StripServeHeaders)]
