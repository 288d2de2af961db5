"""What every route has in common: keys, ids, headers, logs and metrics; and the simple routes."""

import hashlib
import json
import logging
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from app.config import GatewayConfig, ModelRoute
from app.middleware import RequestMiddleware, request_logger
from app.server import create_asgi_app
from engine.messages import ServiceClass
from tests.unit.app.conftest import MakeEdge
from tests.unit.app.fakes import FakeEngine, until

KEY = "sk-correct-horse"
PATHS = ["/version", "/v1/models", "/metrics", "/v1/models/m", "/nowhere"]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize("stored", [KEY, "sha256:" + hashlib.sha256(KEY.encode()).hexdigest()])
async def test_every_route_but_health_asks_for_the_key(make_edge: MakeEdge, stored: str) -> None:
    edge = await make_edge(FakeEngine(reply="ok"), api_keys=["another", stored])
    for path in PATHS:
        other_scheme = {"authorization": f"Basic {KEY}"}
        for headers in ({}, bearer("wrong"), {"authorization": KEY}, bearer(""), other_scheme):
            response = await edge.http.get(path, headers=headers)
            assert response.status_code == 401, path
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["www-authenticate"] == "Bearer"
        assert (await edge.http.get(path, headers=bearer(KEY))).status_code != 401
    assert (await edge.chat()).status_code == 401
    for headers in ({}, bearer("wrong"), bearer(KEY)):
        response = await edge.http.get("/health", headers=headers)
        assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("path", ["/debug/steps", "/debug/requests/x", "/metrics/targets"])
async def test_what_is_the_operators_needs_an_admin_key(make_edge: MakeEdge, path: str) -> None:
    edge = await make_edge(FakeEngine(), api_keys=[KEY], admin_keys=["sk-admin"])
    assert (await edge.http.get(path)).status_code == 401
    refused = await edge.http.get(path, headers=bearer(KEY))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "admin_key_required")
    assert (await edge.http.get(path, headers=bearer("sk-admin"))).status_code not in (401, 403)
    assert (await edge.http.get("/metrics", headers=bearer(KEY))).status_code == 200


@pytest.mark.parametrize("path", ["/debug/steps", "/debug/requests/x", "/metrics/targets"])
async def test_under_a_prefix_operators_need_an_admin_key_too(
    make_edge: MakeEdge, path: str
) -> None:
    edge = await make_edge(FakeEngine(), admin_keys=["sk-admin"])
    transport = httpx.ASGITransport(create_asgi_app(edge.gateway), root_path="/llm")
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway/llm") as http:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get(path)).status_code == 401
        admin = await http.get(path, headers=bearer("sk-admin"))
        assert admin.status_code not in (401, 403)


async def test_without_keys_nobody_is_asked(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    assert (await edge.http.get("/v1/models", headers=bearer("any"))).status_code == 200


@pytest.mark.parametrize("key", ["", " padded", "sha256:abc", "sha256:" + "A" * 64, "ü"])
def test_a_key_that_cannot_match_is_a_configuration_error(key: str) -> None:
    with pytest.raises(ValidationError, match=r"api_keys\[0\]") as caught:
        GatewayConfig(api_keys=(key,))
    assert not key or f"'{key}'" not in str(caught.value)


def test_a_name_that_is_used_twice_is_a_configuration_error() -> None:
    with pytest.raises(ValidationError, match="used twice"):
        GatewayConfig(models=(ModelRoute(name="a"), ModelRoute(name="b", aliases=("a",))))


async def test_models_are_listed_in_order_with_their_state(make_edge: MakeEdge) -> None:
    routes = [ModelRoute(name="m"), ModelRoute(name="org/loading")]
    edge = await make_edge(FakeEngine(), models=routes)
    body = (await edge.http.get("/v1/models")).json()
    assert body["object"] == "list"
    assert [(model["id"], model["status"]) for model in body["data"]] == [
        ("m", "ready"),
        ("org/loading", "loading"),
    ]
    one = await edge.http.get("/v1/models/org/loading")
    assert one.json() == body["data"][1]


async def test_a_model_without_a_replica_is_loading(make_edge: MakeEdge) -> None:
    edge = await make_edge()
    response = await edge.chat()
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "model_loading"
    assert 0 < int(response.headers["retry-after"]) <= 120


async def test_an_alias_answers_with_the_models_name(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    assert (await edge.chat(model="alias")).json()["model"] == "m"


async def test_configuration_changes_without_a_restart(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    edge.gateway.reconfigure(GatewayConfig(models=(ModelRoute(name="m"),), api_keys=(KEY,)))
    assert (await edge.chat()).status_code == 401
    edge.gateway.reconfigure(GatewayConfig(models=(ModelRoute(name="other"),)))
    assert (await edge.chat()).status_code == 404
    assert (await edge.chat(model="other")).status_code == 503


async def test_a_model_that_is_taken_out_lets_its_engines_go(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine)
    edge.gateway.reconfigure(GatewayConfig())
    await until(lambda: not engine.is_accepting)
    assert (await edge.chat()).status_code == 404


async def test_a_model_whose_name_becomes_an_alias_lets_its_engines_go(make_edge: MakeEdge) -> None:
    engine = FakeEngine()
    edge = await make_edge(engine)
    edge.gateway.reconfigure(GatewayConfig(models=(ModelRoute(name="new", aliases=("m",)),)))
    await until(lambda: not engine.is_accepting)


async def test_every_response_has_ids_and_its_time(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    responses: list[httpx.Response] = [
        await edge.chat(),
        await edge.chat(model="nope"),
        await edge.http.get("/health"),
        await edge.http.get("/nope"),
    ]
    ids = {response.headers["x-request-id"] for response in responses}
    assert len(ids) == len(responses)
    assert all(int(response.headers["openai-processing-ms"]) >= 0 for response in responses)
    assert responses[0].json()["id"] == responses[0].headers["x-request-id"]
    assert responses[1].json()["error"]["request_id"] == responses[1].headers["x-request-id"]


async def test_a_clients_request_id_is_cleaned_echoed_and_never_a_key(make_edge: MakeEdge) -> None:
    engine = FakeEngine(reply="ok")
    edge = await make_edge(engine)
    headers = {"x-request-id": 'my-id_1" {}<script>' + "x" * 500}
    for _ in range(2):
        response = await edge.http.get("/version", headers=headers)
        assert response.headers["x-request-id"] == ("my-id_1script" + "x" * 500)[:128]
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    await edge.http.post("/v1/chat/completions", json=body, headers=headers)
    assert all(request_id.startswith("chatcmpl-") for request_id in engine.requests)


async def test_the_log_has_one_line_per_request_without_contents(
    make_edge: MakeEdge, caplog: pytest.LogCaptureFixture
) -> None:
    edge = await make_edge(FakeEngine(reply="the secret answer"), api_keys=[KEY])
    with caplog.at_level(logging.INFO, request_logger.name):
        body = {"model": "m", "messages": [{"role": "user", "content": "the secret question"}]}
        response = await edge.http.post("/v1/chat/completions", json=body, headers=bearer(KEY))
    lines = [r.getMessage() for r in caplog.records if r.name == request_logger.name]
    (line,) = [json.loads(line) for line in lines]
    assert line["request_id"] == response.json()["id"]
    assert line["status"] == 200
    assert line["engine_id"] == "e0"
    assert line["completion_tokens"] == len("the secret answer") + 1
    assert "secret" not in caplog.text
    assert KEY not in caplog.text


async def test_serves_own_headers_are_stripped(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine())
    seen: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.extend(name for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    transport = httpx.ASGITransport(RequestMiddleware(inner, edge.gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        names = {"X-Request-Timeout-Seconds": "0.1", "x-request-disconnect-disabled": "1"}
        await http.get("/", headers=names | {"x-other": "1"})
    assert b"x-other" in seen
    assert not {name.lower().encode() for name in names} & set(seen)


async def test_an_unexpected_failure_is_a_500_that_tells_nothing(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine())

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("at address 0x7f00")

    transport = httpx.ASGITransport(RequestMiddleware(broken, edge.gateway))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        response = await http.get("/")
    assert response.status_code == 500
    assert "0x7f00" not in response.text
    assert response.json()["error"]["type"] == "server_error"


async def test_metrics_count_requests_tokens_and_queues(make_edge: MakeEdge) -> None:
    engine = FakeEngine(reply="four", num_credits=7)
    edge = await make_edge(engine)
    await edge.chat()
    await edge.chat(model="nope")
    await until(lambda: not engine.sinks)
    text = (await edge.http.get("/metrics")).text
    route = 'route="/v1/chat/completions"'
    assert f'headwater:http_requests_total{{model_name="m",{route},status="200"}} 1.0' in text
    assert f'headwater:http_requests_total{{model_name="",{route},status="404"}} 1.0' in text
    assert 'headwater:tokens_total{kind="completion",model_name="m"} 5.0' in text
    assert 'headwater:tokens_total{kind="cached",model_name="m"} 16.0' in text
    assert 'headwater:time_to_first_token_seconds_count{model_name="m"} 1.0' in text
    assert 'headwater:request_time_per_output_token_seconds_count{model_name="m"} 1.0' in text
    assert 'headwater:engine_credits{engine="e0",model_name="m"} 6.0' in text
    assert 'headwater:gateway_requests_waiting{model_name="m"} 0.0' in text
    assert 'headwater:engines_accepting{model_name="m"} 1.0' in text


async def test_tokens_of_a_request_that_no_engine_took_are_not_counted(make_edge: MakeEdge) -> None:
    edge = await make_edge(
        FakeEngine(num_credits=0), max_queue_wait_s=0.01, default_class="interactive"
    )
    assert (await edge.chat()).status_code == 504
    text = (await edge.http.get("/metrics")).text
    assert (
        'headwater:http_requests_total{model_name="m",route="/v1/chat/completions",'
        'status="504"} 1.0' in text
    )
    assert "headwater:tokens_total{" not in text


@pytest.mark.parametrize(
    ("fields", "headers", "expected", "tier"),
    [
        ({"service_tier": "priority"}, {}, ServiceClass.INTERACTIVE, "priority"),
        ({"service_tier": "flex"}, {}, ServiceClass.BATCH, "flex"),
        ({"service_tier": "auto"}, {}, ServiceClass.STANDARD, "default"),
        ({}, {"x-headwater-class": "interactive"}, ServiceClass.INTERACTIVE, None),
        ({}, {}, ServiceClass.STANDARD, None),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_the_class_reaches_the_engine_and_the_tier_the_client(
    make_edge: MakeEdge,
    path: str,
    fields: dict[str, str],
    headers: dict[str, str],
    expected: ServiceClass,
    tier: str | None,
) -> None:
    engine = FakeEngine(reply="hi")
    edge = await make_edge(engine)
    asked: dict[str, object] = {"prompt": "Hi"}
    if path == "/v1/chat/completions":
        asked = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = await edge.http.post(path, json={"model": "m"} | asked | fields, headers=headers)
    assert answer.status_code == 200
    (request,) = engine.requests.values()
    assert request.service_class is expected
    assert answer.json().get("service_tier") == tier


async def test_an_unknown_class_is_a_400_that_names_the_choices(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="hi"))
    cases: list[tuple[dict[str, object], dict[str, str], str]] = [
        ({"service_tier": "urgent"}, {}, "priority"),
        ({}, {"x-headwater-class": "urgent"}, "interactive"),
    ]
    for fields, headers, choice in cases:
        body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]} | fields
        answer = await edge.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 400
        assert choice in answer.json()["error"]["message"]
