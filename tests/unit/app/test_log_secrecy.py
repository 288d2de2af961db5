"""Whatever a client sends as prompt or key stands in no log record, in success and in failure."""

import asyncio
import json
import logging
from typing import Any

import pytest
from starlette.types import ASGIApp, Message

from app.middleware import RequestMiddleware
from app.server import create_asgi_app
from engine.messages import TokenDelta
from tests.unit.app.conftest import Edge, MakeEdge
from tests.unit.app.fakes import FakeEngine, until

SECRET = "sEcReT-4711"
KEY = f"key-{SECRET}"
QUESTION = {"model": "m", "messages": [{"role": "user", "content": SECRET}]}

Headers = list[tuple[bytes, bytes]]


async def ask(
    edge: Edge,
    body: Any = None,
    *,
    path: str = "/v1/chat/completions",
    method: str = "POST",
    key: str = KEY,
    headers: Headers | None = None,
    app: ASGIApp | None = None,
) -> int:
    """As uvicorn would; returns the status."""
    sent: list[Message] = []
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    bodies = iter([{"type": "http.request", "body": content, "more_body": False}])

    async def receive() -> Message:
        body = next(bodies, None)
        return await asyncio.Future() if body is None else body

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "query_string": f"key={SECRET}".encode(),
        "headers": [
            (b"authorization", f"Bearer {key}".encode()),
            (b"x-api-key", SECRET.encode()),
            (f"x-{SECRET}".lower().encode(), SECRET.encode()),
            *(headers or []),
        ],
    }
    await (app or create_asgi_app(edge.gateway))(scope, receive, send)
    status: int = sent[0]["status"]
    return status


async def test_no_prompt_and_no_key_is_logged(
    make_edge: MakeEdge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    edge = await make_edge(FakeEngine(reply=SECRET), api_keys=[KEY])
    too_many: Headers = [(SECRET.lower().encode(), b"x")] * 300
    tool = {"type": "function", "function": {"name": SECRET, "parameters": {"x": SECRET}}}
    statuses = [
        await ask(edge, QUESTION),
        await ask(edge, QUESTION | {"stream": True}),
        await ask(edge, {"model": "m", "prompt": SECRET, "echo": True}, path="/v1/completions"),
        await ask(edge, {"model": "m", "prompt": SECRET}, path="/v1/tokenize"),
        await ask(edge, QUESTION, key=f"wrong-{SECRET}"),
        await ask(edge, QUESTION, path=f"/{SECRET}"),
        await ask(edge, QUESTION, path=f"/v1/models/{SECRET}", method="GET"),
        await ask(edge, QUESTION, method=SECRET),
        await ask(edge, QUESTION | {"model": SECRET}),
        await ask(edge, QUESTION | {SECRET: SECRET}),
        await ask(edge, QUESTION | {"temperature": SECRET}),
        await ask(edge, QUESTION | {"tools": [tool], "tool_choice": SECRET}),
        await ask(edge, {"model": "m", "messages": [{"role": "tool", "content": SECRET}]}),
        await ask(edge, SECRET.encode()),
        await ask(edge, QUESTION, headers=too_many),
    ]
    assert statuses[:4] == [200] * 4
    assert {400, 401, 404, 405, 431} <= set(statuses)
    assert sum(record.name == "headwater.request" for record in caplog.records) == len(statuses)
    assert_silent(caplog)


async def test_an_unexpected_failure_is_logged_without_its_words(
    make_edge: MakeEdge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    edge = await make_edge()

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        try:
            raise ValueError(SECRET)
        except ValueError as error:
            raise RuntimeError(f"cannot take {SECRET}") from error

    assert await ask(edge, QUESTION, app=RequestMiddleware(broken, edge.gateway)) == 500
    assert "RuntimeError at" in caplog.text
    assert "after ValueError at" in caplog.text
    assert "in broken" in caplog.text
    assert_silent(caplog)


async def test_an_answer_that_cannot_be_decoded_is_logged_without_it(
    make_edge: MakeEdge, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = FakeEngine()
    edge = await make_edge(engine)
    task = asyncio.create_task(ask(edge, QUESTION))
    await until(lambda: engine.requests)
    request_id = next(iter(engine.requests))
    no_tokens: Any = {SECRET: SECRET}
    engine.send(TokenDelta(request_id, no_tokens, index=7))
    assert await task == 500
    assert "could not be decoded: " in caplog.text
    assert_silent(caplog)


def assert_silent(caplog: pytest.LogCaptureFixture) -> None:
    formatter = logging.Formatter("%(levelname)s %(name)s %(message)s")
    for record in caplog.records:
        line = formatter.format(record).lower()
        assert SECRET.lower() not in line
