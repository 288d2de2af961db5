"""The gateway under test, over HTTP without sockets."""

from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from app.config import GatewayConfig, ModelRoute
from app.gateway import Gateway
from app.server import create_asgi_app
from tests.unit.app.fakes import FakeEngine, connector, join


@dataclass(frozen=True, slots=True)
class Edge:
    """A gateway, its engines and a client of it."""

    gateway: Gateway
    engines: dict[str, FakeEngine]
    http: httpx.AsyncClient

    async def chat(self, body: dict[str, Any] | None = None, **fields: Any) -> httpx.Response:
        question = [{"role": "user", "content": "Hi"}]
        fields = {"model": "m", "messages": question} | (body or {}) | fields
        return await self.http.post("/v1/chat/completions", json=fields)

    async def complete(self, prompt: Any = "Hi", **fields: Any) -> httpx.Response:
        fields = {"model": "m", "prompt": prompt} | fields
        return await self.http.post("/v1/completions", json=fields)


MakeEdge = Callable[..., Coroutine[Any, Any, Edge]]


@pytest.fixture
async def make_edge() -> AsyncIterator[MakeEdge]:
    opened: list[Edge] = []

    async def make(*engines: FakeEngine, **config: Any) -> Edge:
        by_id = {engine.card.engine_id: engine for engine in engines}
        config = {"models": [ModelRoute(name="m", aliases=("alias",))]} | config
        gateway = Gateway(GatewayConfig(**config), connect=connector(by_id))
        if by_id:
            await join(gateway, "m", by_id)
        transport = httpx.ASGITransport(create_asgi_app(gateway), raise_app_exceptions=False)
        http = httpx.AsyncClient(transport=transport, base_url="http://gateway")
        opened.append(Edge(gateway, by_id, http))
        return opened[-1]

    yield make
    for edge in opened:
        await edge.http.aclose()
        await edge.gateway.close()
