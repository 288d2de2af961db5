"""Which paths there are, and the routes that answer at once."""

import pytest

from app.config import ModelRoute
from tests.unit.app.conftest import MakeEdge
from tests.unit.app.fakes import FakeEngine, make_card


@pytest.mark.parametrize("prefix", ["/v1", ""])
async def test_every_path_is_served_with_and_without_its_prefix(
    make_edge: MakeEdge, prefix: str
) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    assert (await edge.http.get(f"{prefix}/models")).json()["data"][0]["id"] == "m"
    assert (await edge.http.get(f"{prefix}/models/alias")).json()["id"] == "m"
    body = {"model": "alias", "prompt": "Hi"}
    completion = await edge.http.post(f"{prefix}/completions", json=body)
    assert completion.json()["model"] == "m", "answers carry the model's own name"


async def test_a_model_says_what_requests_are_held_to(make_edge: MakeEdge) -> None:
    card = make_card(max_model_len=512)
    routes = [ModelRoute(name="m"), ModelRoute(name="org/loading")]
    edge = await make_edge(FakeEngine(card=card), models=routes)
    ready, loading = (await edge.http.get("/v1/models")).json()["data"]
    assert ready["max_model_len"] == card.max_request_tokens
    assert loading["max_model_len"] is None
    assert loading["status"] == "loading"


async def test_the_openapi_document_is_served(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine())
    document = (await edge.http.get("/openapi.json")).json()
    assert "/v1/completions" in document["paths"]


@pytest.mark.parametrize("path", ["/v1/completions", "/chat/completions", "/v1/completions/"])
async def test_paths_are_exact_and_methods_checked(make_edge: MakeEdge, path: str) -> None:
    edge = await make_edge(FakeEngine())
    response = await edge.http.get(path)
    assert response.status_code == (404 if path.endswith("/") else 405)
    assert response.json()["error"]["type"] == "invalid_request_error"


async def test_both_paths_are_one_route_in_the_metrics(make_edge: MakeEdge) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    for path in ("/v1/completions", "/completions"):
        await edge.http.post(path, json={"model": "m", "prompt": "Hi"})
    text = (await edge.http.get("/metrics")).text
    assert (
        'headwater:http_requests_total{model_name="m",route="/v1/completions",status="200"} 2.0'
        in text
    )
