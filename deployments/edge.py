"""What stands around the gateway's app: a client may not steer Serve by its request's headers.

Serve lets a request set its own timeout, switch off the detection of its disconnect and pick its
replica. The first two would keep an answer running that nobody reads, and each value that isn't
UTF-8 is a 500 of Serve's, so `middlewares` removes those headers before Serve sees them: in its
proxy, and in the port each gateway replica opens for HAProxy. A session's id reaches our router
under another name. It also settles whose request id counts, since Serve makes one for a request
without and adds it to every response.

Serve loads them where `RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH` names them; `headwater serve`
sets it, and on a cluster it belongs into every node's environment. (`controller_options` in the
YAML would do for Serve's proxy, but then no process can use a worker that Ray started ahead: 3 s
more to start.) Where nobody set it, `RefuseUnwatched` still refuses what would run on unwatched;
the other headers then only harm the request that brought them, and an id that Serve made passes
for the client's. Imports nothing of ours.
"""

import re

from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

UNWATCHED_HEADER = b"x-request-disconnect-disabled"
STEERING_HEADERS = frozenset(
    {
        UNWATCHED_HEADER.replace(b"-", b"_"),
        b"x_request_timeout_seconds",
        b"x_session_id",
        b"serve_multiplexed_model_id",
    }
)
"""With underscores; Serve takes some of them with hyphens, underscores or both."""

SESSION_HEADER = b"x-headwater-session"
"""What becomes of `x-session-id`."""

REQUEST_ID_HEADER = b"x-request-id"
_ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_HAS_CLIENT_ID = "headwater.has_client_request_id"
"""Key of the ASGI scope, which no client can set and Serve carries from its proxy to a replica."""


class StripServeHeaders:
    """Pure ASGI: drops `STEERING_HEADERS` from every HTTP and WebSocket request; `x-session-id` is
    renamed.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            headers = [
                (SESSION_HEADER if name == b"x-session-id" else name, value)
                for name, value in scope["headers"]
                if name == b"x-session-id" or name.replace(b"-", b"_") not in STEERING_HEADERS
            ]
            scope = {**scope, "headers": headers}
        await self._app(scope, receive, send)


class KeepOneRequestId:
    """Pure ASGI: lets in a client's id only if it is harmless, and one id out of every response.

    Serve appends its own, the client's as it came, after the one that the gateway chose.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        ids = [value for name, value in scope["headers"] if name == REQUEST_ID_HEADER]
        headers = _without_id(scope["headers"])
        has_client_id = len(ids) == 1 and _ACCEPTED_ID.fullmatch(ids[0]) is not None
        if has_client_id:
            headers.append((REQUEST_ID_HEADER, ids[0]))

        async def send_with_one_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = list(message.get("headers", ()))
                first = [item for item in sent if item[0].lower() == REQUEST_ID_HEADER][:1]
                message = {**message, "headers": [*_without_id(sent), *first]}
            await send(message)

        scope = {**scope, "headers": headers, _HAS_CLIENT_ID: has_client_id}
        await self._app(scope, receive, send_with_one_id)


class DropServesRequestId:
    """Pure ASGI, in the gateway: the id that Serve made is not a client's, so it isn't echoed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get(_HAS_CLIENT_ID) is False:
            scope = {**scope, "headers": _without_id(scope["headers"])}
        await self._app(scope, receive, send)


class RefuseUnwatched:
    """Pure ASGI, in the gateway: 400 for a request whose disconnect Serve was told to ignore."""

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
    """What Serve puts around its HTTP servers, outside of its own request ids."""
    return [Middleware(StripServeHeaders), Middleware(KeepOneRequestId)]


def _without_id(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [item for item in headers if item[0].lower() != REQUEST_ID_HEADER]
