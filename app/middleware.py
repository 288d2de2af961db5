"""Around every request, in pure ASGI: ids, authentication, errors as JSON, log line, metrics."""

import asyncio
import logging
import re

from starlette._utils import get_route_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import ApiError, HeadersTooLargeError
from app.gateway import Gateway
from app.record import RequestRecord, attach_record, create_record
from app.requests.body import ClientGoneError
from app.stack_traces import stack_of

logger = logging.getLogger(__name__)
request_logger = logging.getLogger("headwater.request")

PUBLIC_PATHS = frozenset({"/health"})

# Whatever is below them is the operators', routes that are still to come included.
_ADMIN_PATHS = ("/debug", "/metrics/")

# Ray Serve obeys these; a client must not set the server's own time limits.
_STRIPPED_HEADERS = frozenset({b"x-request-timeout-seconds", b"x-request-disconnect-disabled"})

MAX_HEADERS = 256
MAX_HEADERS_BYTES = 64 * 1024
"""Proxies in front allow less, but uvicorn's fast parser takes whatever is sent."""

_UNSAFE_ID_CHARS = re.compile(rb"[^A-Za-z0-9._:-]")
_MAX_CLIENT_ID_LEN = 128

CLIENT_CLOSED_STATUS = 499
"""In logs and metrics only: nobody reads it."""


class RequestMiddleware:
    """Outermost of the gateway's ASGI applications."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["headers"] = [item for item in scope["headers"] if item[0] not in _STRIPPED_HEADERS]
        headers: dict[bytes, bytes] = dict(scope["headers"])
        record = create_record(scope)
        record.client_request_id = _client_id(headers.get(b"x-request-id"))
        attach_record(scope, record)
        responder = _Responder(record, send)
        try:
            await self._run(scope, receive, responder, headers.get(b"authorization"))
        finally:
            self._gateway.metrics.count(record)
            if request_logger.isEnabledFor(logging.INFO):
                request_logger.info("%s", record.log_line())

    async def _run(
        self, scope: Scope, receive: Receive, responder: "_Responder", authorization: bytes | None
    ) -> None:
        record = responder.record
        try:
            _check_headers(scope)
            # What the router goes by: a mounted gateway's paths have a prefix, which it takes off.
            path = get_route_path(scope)
            if path.startswith(_ADMIN_PATHS):
                self._gateway.authenticator.check_admin(authorization)
            elif path not in PUBLIC_PATHS:
                self._gateway.authenticator.check(authorization)
            await self._app(scope, receive, responder.send)
        except ApiError as error:
            await responder.send_error(error)
        except (ClientGoneError, asyncio.CancelledError) as gone:
            # An answer that has begun is left unfinished, so that nobody takes it for complete.
            record.status = CLIENT_CLOSED_STATUS
            record.error = record.error or "client_closed"
            if isinstance(gone, asyncio.CancelledError):
                raise
        except Exception as error:
            logger.error("request %s failed: %s", record.request_id, stack_of(error))
            await responder.send_error(ApiError("The server had an error. See its log."))


class _Responder:
    """Adds the headers that every response has, and remembers whether one has begun."""

    def __init__(self, record: RequestRecord, send: Send) -> None:
        self.record = record
        self._send = send
        self._has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._has_begun = True
            record = self.record
            record.status = message["status"]
            request_id = record.client_request_id or record.request_id
            message["headers"] = [
                *message.get("headers", ()),
                (b"x-request-id", request_id.encode()),
                (b"openai-processing-ms", b"%d" % round(record.elapsed_s * 1000)),
            ]
        await self._send(message)

    async def send_error(self, error: ApiError) -> None:
        """Nothing, if an answer has begun: its stream ends unfinished."""
        self.record.error = error.code or error.type
        if self._has_begun:
            return
        body = error.body(self.record.request_id)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *((name.encode(), value.encode()) for name, value in error.headers.items()),
        ]
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})


def _check_headers(scope: Scope) -> None:
    headers = scope["headers"]
    num_bytes = sum(len(name) + len(value) for name, value in headers)
    if len(headers) > MAX_HEADERS or num_bytes > MAX_HEADERS_BYTES:
        raise HeadersTooLargeError(MAX_HEADERS, MAX_HEADERS_BYTES)


def _client_id(value: bytes | None) -> str | None:
    """Only characters that are harmless in a header and a log line."""
    return _UNSAFE_ID_CHARS.sub(b"", value or b"")[:_MAX_CLIENT_ID_LEN].decode() or None
