"""Headers by which clients would steer Serve, and whose request id counts."""

from collections.abc import Callable

import pytest
from ray.serve._private.http_util import RequestIdMiddleware
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.config import GatewayConfig
from app.gateway import Gateway
from app.requests.session import SESSION_HEADER
from app.server import create_asgi_app
from deployments.edge import DropServesRequestId, RefuseUnwatched, middlewares

Headers = list[tuple[bytes, bytes]]


class Recorder:
    """An ASGI app that keeps the scope it was called with."""

    def __init__(self) -> None:
        self.scope: Scope = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope


async def _receive() -> Message:
    return {"type": "http.disconnect"}


async def _send(message: Message) -> None:
    raise AssertionError(message)


def _as_serve_wraps(app: ASGIApp) -> ASGIApp:
    """Serve's own middleware is the innermost."""
    for middleware in (Middleware(RequestIdMiddleware), *middlewares()):
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)
    return app


async def _headers_after(headers: Headers) -> Headers:
    """What reaches the app, without the id that Serve makes."""
    inner = Recorder()
    await _as_serve_wraps(inner)({"type": "http", "headers": headers}, _receive, _send)
    kept: Headers = inner.scope["headers"]
    return [item for item in kept if item[0] != b"x-request-id"]


@pytest.mark.parametrize(
    "name",
    [
        b"x-request-timeout-seconds",
        b"x-request-disconnect-disabled",
        b"x_session_id",
        b"serve_multiplexed_model_id",
        b"serve-multiplexed-model-id",
    ],
)
async def test_headers_that_steer_serve_never_reach_it(name: bytes) -> None:
    kept = await _headers_after([(name, b"1"), (b"accept", b"*/*")])
    assert kept == [(b"accept", b"*/*")]


async def test_a_session_reaches_the_router_and_not_serve() -> None:
    kept = await _headers_after([(b"x-session-id", b"\xff7"), (b"accept", b"*/*")])
    assert kept == [(SESSION_HEADER, b"\xff7"), (b"accept", b"*/*")]


async def test_other_headers_pass_in_order_and_repeated() -> None:
    headers = [(b"x-api-key", b"1"), (b"cookie", b"a"), (b"cookie", b"b")]
    assert await _headers_after(headers) == headers


async def _ids_of_answer(
    ids: list[bytes], wrap: Callable[[ASGIApp], ASGIApp] = _as_serve_wraps
) -> list[bytes]:
    """Every `x-request-id` of the gateway's answer to a request that brought `ids`."""
    gateway = Gateway(GatewayConfig())
    app = create_asgi_app(gateway)
    app.add_middleware(DropServesRequestId)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/health",
        "query_string": b"",
        "headers": [(b"x-request-id", value) for value in ids],
    }
    await wrap(app)(scope, _receive, send)
    await gateway.close()
    return [value for name, value in sent[0]["headers"] if name.lower() == b"x-request-id"]


async def test_a_clients_id_comes_back_once() -> None:
    assert await _ids_of_answer([b"mine-1"]) == [b"mine-1"]


@pytest.mark.parametrize("ids", [[], [b"\xff"], [b"a b"], [b""], [b"x" * 129], [b"a", b"b"]])
async def test_without_an_acceptable_id_the_answer_has_the_gateways_and_not_serves(
    ids: list[bytes],
) -> None:
    (answered,) = await _ids_of_answer(ids)
    assert answered.startswith(b"chatcmpl-")


async def test_without_the_edge_serve_would_add_a_second_id() -> None:
    assert await _ids_of_answer([b"a b"], RequestIdMiddleware) == [b"ab", b"a b"]


async def _status_of(headers: Headers) -> int | None:
    """None: the app inside was asked."""
    inner = Recorder()
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "headers": headers}
    await RefuseUnwatched(inner)(scope, _receive, send)
    return None if inner.scope else int(sent[0]["status"])


async def test_a_request_that_would_run_unwatched_is_refused_where_nothing_strips_it() -> None:
    assert await _status_of([(b"x-request-disconnect-disabled", b"?1")]) == 400
    assert await _status_of([(b"x-request-disconnect-disabled", b"?0")]) is None
    assert await _status_of([(b"accept", b"*/*")]) is None


async def test_lifespan_messages_pass() -> None:
    inner = Recorder()
    app: ASGIApp = inner
    for middleware in middlewares():
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)
    await app({"type": "lifespan"}, _receive, _send)
    assert inner.scope == {"type": "lifespan"}
