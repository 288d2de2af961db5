"""Any session that a client names, and any question to a router, is answered or refused."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.config import GatewayConfig, ModelRoute
from app.gateway import Gateway
from app.server import create_router_app
from engine.messages import LoadView
from tests.unit.app.conftest import Edge, MakeEdge
from tests.unit.app.fakes import FakeEngine, connector, join

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi " * 60}], "max_tokens": 2}


def engines(number: int = 3) -> list[FakeEngine]:
    return [FakeEngine(f"e{index}", reply="ok") for index in range(number)]


def check_nothing_is_left(edge: Edge) -> None:
    dispatcher = edge.gateway.dispatchers["m"]
    for engine in edge.engines.values():
        engine.step(LoadView())
    dispatcher.check_integrity()
    assert (dispatcher.num_waiting, dispatcher.num_running) == (0, 0)
    assert dispatcher.fleet.index.num_bytes == 0
    for member in dispatcher.fleet:
        assert not any((member.unseen, member.unconfirmed, member.routed))


@pytest.mark.parametrize(
    "session",
    [b"", b"\0", b"\xff\xfe", b"a, b", b"'; DROP TABLE", "é".encode(), b"x" * 10_000],
)
async def test_any_session_header_is_a_session(make_edge: MakeEdge, session: bytes) -> None:
    edge = await make_edge(*engines())
    twice = [(b"x-headwater-session", session)] * 2
    response = await edge.http.post("/v1/chat/completions", json=CHAT, headers=twice)
    assert response.status_code == 200
    check_nothing_is_left(edge)


async def test_a_session_of_a_megabyte_is_refused(make_edge: MakeEdge) -> None:
    edge = await make_edge(*engines())
    headers = {"x-headwater-session": "x" * 1_000_000}
    response = await edge.http.post("/v1/chat/completions", json=CHAT, headers=headers)
    assert response.status_code == 431


async def test_sessions_that_came_once_leave_nothing(make_edge: MakeEdge) -> None:
    edge = await make_edge(*engines())
    for number in range(60):
        headers = {"x-headwater-session": f"session {number}"}
        response = await edge.http.post("/v1/chat/completions", json=CHAT, headers=headers)
        assert response.status_code == 200
    check_nothing_is_left(edge)


@pytest.mark.parametrize("hint", [None, 5, 0.5, True, [], ["k"], {"k": 1}, "", "k" * 60_000])
@pytest.mark.parametrize("name", ["prompt_cache_key", "user"])
async def test_a_hint_of_any_kind_is_used_or_ignored(
    make_edge: MakeEdge, name: str, hint: Any
) -> None:
    edge = await make_edge(*engines())
    for body in (CHAT | {"n": 2}, {"model": "m", "prompt": ["a" * 200, "b"], "max_tokens": 1}):
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        content = json.dumps(body | {name: hint})
        response = await edge.http.post(path, content=content)
        assert response.status_code == 200, response.text
    check_nothing_is_left(edge)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=6,
)
MESSAGES = st.lists(
    st.fixed_dictionaries({}, optional={"role": st.just("user") | JSON, "content": JSON}),
    max_size=3,
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["m", "m", "m", "other", ""]) | JSON,
        "messages": MESSAGES | JSON,
        "prompt": st.text(max_size=300) | st.lists(st.integers(-1, 300)) | JSON,
        "n": st.integers(-1, 20) | JSON,
        "max_tokens": st.integers(-1, 5000) | JSON,
        "user": JSON,
        "prompt_cache_key": JSON,
        "cache_salt": JSON,
        "stream": JSON,
        "service_tier": st.sampled_from(["auto", "flex", "priority"]) | JSON,
    },
)


@pytest.fixture
async def router() -> AsyncIterator[httpx.AsyncClient]:
    members = {engine.card.engine_id: engine for engine in engines()}
    gateway = Gateway(GatewayConfig(models=(ModelRoute(name="m"),)), connect=connector(members))
    await join(gateway, "m", members)
    transport = httpx.ASGITransport(create_router_app(gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://router") as http:
        yield http
    await gateway.close()


@given(BODIES | JSON)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_a_router_is_asked_it_answers_or_refuses(
    router: httpx.AsyncClient, body: Any
) -> None:
    response = await router.post("/v1/route", content=json.dumps(body))
    assert response.status_code in (200, 400, 404), response.text
    if response.status_code != 200:
        assert response.json()["error"]["message"]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[" * 100_000, b'{"model": "m", "prompt": "x", "n": 1e999}', b"null"],
)
async def test_what_is_no_json_object_is_refused(router: httpx.AsyncClient, content: bytes) -> None:
    response = await router.post("/v1/route", content=content)
    assert response.status_code == 400
