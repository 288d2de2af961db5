"""The OpenAPI document says what the server does, no more and no less."""

from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from pydantic import BaseModel
from starlette.routing import Route

from app.config import GatewayConfig
from app.gateway import Gateway
from app.requests import answer_schemas as answers
from app.requests.chat_request import ChatRequest
from app.requests.completion_request import CompletionRequest
from app.requests.openapi import openapi_document
from app.requests.tokenize_request import DetokenizeRequest, TokenizeRequest
from app.server import create_asgi_app
from tests.unit.app.conftest import MakeEdge
from tests.unit.app.fakes import FakeEngine

DOCUMENT: dict[str, Any] = orjson.loads(openapi_document())
METHODS = {"get", "post", "put", "delete", "patch"}


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method in METHODS & item.keys():
            yield method, path, item[method]


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def resolve(reference: str) -> Any:
    target = DOCUMENT
    for step in reference.removeprefix("#/").split("/"):
        target = target[step]
    return target


async def test_every_route_is_documented_and_every_documented_one_is_served() -> None:
    gateway = Gateway(GatewayConfig())
    routes = [route for route in create_asgi_app(gateway).routes if isinstance(route, Route)]
    await gateway.close()
    served = {
        (method.lower(), route.path.replace(":path}", "}"))
        for route in routes
        for method in (route.methods or set()) - {"HEAD"}
    }
    documented = {(method, path) for method, path, _ in operations()}
    bare = {(method, path.removeprefix("/v1")) for method, path in documented}
    assert served >= documented | bare
    assert {(method, path.removeprefix("/v1")) for method, path in served} == bare


def test_every_reference_leads_somewhere() -> None:
    found = set(references(DOCUMENT))
    assert found
    for reference in found:
        assert isinstance(resolve(reference), dict)


def test_nothing_is_described_that_no_route_uses() -> None:
    used = set()
    pending = list(references([DOCUMENT["paths"]]))
    while pending:
        reference = pending.pop()
        if reference not in used:
            used.add(reference)
            pending += references(resolve(reference))
    for kind in ("schemas", "responses"):
        described = {f"#/components/{kind}/{name}" for name in DOCUMENT["components"][kind]}
        assert described <= used


def test_every_operation_is_complete() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert DOCUMENT["info"].keys() >= {"title", "version"}
    for method, path, operation in operations():
        assert operation["summary"], (method, path)
        responses = operation["responses"]
        assert responses.keys() >= {"200", "401", "405", "431", "500"}
        assert all(
            "description" in (resolve(r["$ref"]) if "$ref" in r else r) for r in responses.values()
        )
        assert ("requestBody" in operation) == (method == "post")
        in_path = {part[1:-1] for part in path.split("/") if part.startswith("{")}
        declared = DOCUMENT["paths"][path].get("parameters", [])
        assert in_path == {one["name"] for one in declared if one["in"] == "path"}


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1/chat/completions", ChatRequest),
        ("/v1/completions", CompletionRequest),
        ("/tokenize", TokenizeRequest),
        ("/detokenize", DetokenizeRequest),
    ],
)
def test_requests_have_the_fields_that_are_read(path: str, model: Any) -> None:
    operation = DOCUMENT["paths"][path]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    described = resolve(schema["$ref"])
    assert described["properties"].keys() == model.model_fields.keys()
    required = {name for name, field in model.model_fields.items() if field.is_required()}
    assert set(described["required"]) == required
    assert described.get("additionalProperties", True)


def test_ranges_are_part_of_the_schema() -> None:
    fields = DOCUMENT["components"]["schemas"]["CompletionRequest"]["properties"]
    assert fields["temperature"]["anyOf"][0] == {"type": "number", "minimum": 0, "maximum": 2}
    assert fields["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 128}
    assert fields["logit_bias"]["anyOf"][0]["maxProperties"] == 1024
    assert len(fields["prompt"]["oneOf"]) == 4


def test_only_the_health_check_needs_no_key() -> None:
    public = [path for _, path, operation in operations() if operation.get("security") == []]
    assert public == ["/health"]


def test_the_document_is_made_once() -> None:
    assert openapi_document() is openapi_document()


@pytest.mark.parametrize("fields", [{}, {"return_token_ids": True, "n": 2}])
async def test_chat_answers_are_as_described(make_edge: MakeEdge, fields: dict[str, Any]) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    logprobs = {"logprobs": True, "top_logprobs": 2}
    for body in (fields, fields | logprobs):
        answers.ChatCompletion.model_validate_json((await edge.chat(body)).content)


@pytest.mark.parametrize("fields", [{}, {"return_token_ids": True, "prompt": ["a", "b"]}])
async def test_text_answers_are_as_described(make_edge: MakeEdge, fields: dict[str, Any]) -> None:
    edge = await make_edge(FakeEngine(reply="ok"))
    for more in ({}, {"logprobs": 2}, {"logprobs": 0, "echo": True}):
        body = {"model": "m", "prompt": "Hi"} | fields | more
        response = await edge.http.post("/v1/completions", json=body)
        answers.Completion.model_validate_json(response.content)


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/version", answers.Version),
        ("/v1/models", answers.ModelList),
        ("/v1/models/alias", answers.Model),
        ("/openapi.json", answers.OpenApiDocument),
        ("/v1/models/nope", answers.Error),
        ("/nope", answers.Error),
    ],
)
async def test_other_answers_are_as_described(
    make_edge: MakeEdge, path: str, model: type[BaseModel]
) -> None:
    for edge in (await make_edge(), await make_edge(FakeEngine(reply="ok"))):
        model.model_validate_json((await edge.http.get(path)).content)


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/tokenize", {"prompt": "Hi"}, answers.Tokenized),
        ("/tokenize", {"prompt": "Hi", "return_token_strs": True}, answers.Tokenized),
        ("/detokenize", {"tokens": [1, 2]}, answers.Detokenized),
        ("/tokenize", {}, answers.Error),
    ],
)
async def test_tokenizing_answers_are_as_described(
    make_edge: MakeEdge, path: str, body: dict[str, Any], model: type[BaseModel]
) -> None:
    edge = await make_edge(FakeEngine())
    response = await edge.http.post(path, json={"model": "m"} | body)
    assert response.status_code == (400 if model is answers.Error else 200)
    model.model_validate_json(response.content)
