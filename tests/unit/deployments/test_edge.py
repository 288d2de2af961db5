"""Headers by which clients would steer Serve."""

from starlette.types import Message, Receive, Scope, Send

from deployments.edge import middlewares


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
    app = inner
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


async def test_lifespan_messages_pass() -> None:
    inner = Recorder()
    (middleware,) = middlewares()
    await middleware.cls(inner)({"type": "lifespan"}, _receive, _send)
    assert inner.scope == {"type": "lifespan"}
