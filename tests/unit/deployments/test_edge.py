"""Headers by which clients would steer Serve."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.edge import RefuseUnwatched, middlewares


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


async def _headers_after(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    inner = Recorder()
    app: ASGIApp = inner
    for middleware in middlewares():
        app = middleware.cls(app, *middleware.args, **middleware.kwargs)
    await app({"type": "http", "headers": headers}, _receive, _send)
    kept: list[tuple[bytes, bytes]] = inner.scope["headers"]
    return kept


async def test_timeout_and_disconnect_headers_never_reach_serve() -> None:
    kept = await _headers_after(
        [
            (b"x-request-timeout-seconds", b"0.1"),
            (b"accept", b"*/*"),
            (b"x-request-disconnect-disabled", b"?1"),
        ]
    )
    assert kept == [(b"accept", b"*/*")]


async def test_other_headers_pass_in_order_and_repeated() -> None:
    headers = [(b"x-request-id", b"1"), (b"cookie", b"a"), (b"cookie", b"b")]
    assert await _headers_after(headers) == headers


async def _status_of(headers: list[tuple[bytes, bytes]]) -> int | None:
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
    (middleware,) = middlewares()
    await middleware.cls(inner, *middleware.args, **middleware.kwargs)(
        {"type": "lifespan"}, _receive, _send
    )
    assert inner.scope == {"type": "lifespan"}
