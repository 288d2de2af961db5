"""The OpenAPI 3.1 document of the gateway's routes, served at ``/openapi.json``.

Request schemas are those that requests are validated by, so that the document cannot promise
something else. ``/v1`` paths stand for the bare ones, too.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import orjson
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from app.requests import answer_schemas as answers
from app.requests.chat_request import ChatRequest
from app.requests.completion_request import CompletionRequest
from app.requests.profile_request import ProfileRequest
from app.requests.tokenize_request import DetokenizeRequest, TokenizeRequest
from app.version import package_version

Json = dict[str, Any]

_GATEWAY_REQUESTS: tuple[type[BaseModel], ...] = (
    ChatRequest,
    CompletionRequest,
    TokenizeRequest,
    DetokenizeRequest,
    ProfileRequest,
)
_GATEWAY_ANSWERS: tuple[type[BaseModel], ...] = (
    answers.ChatCompletion,
    answers.Completion,
    answers.Tokenized,
    answers.Detokenized,
)
_COMMON_ANSWERS: tuple[type[BaseModel], ...] = (
    answers.Model,
    answers.ModelList,
    answers.Version,
    answers.OpenApiDocument,
    answers.Error,
)

_ERRORS = {
    "400": "A field is wrong or not supported; `param` names it.",
    "401": "No API key, or one that is not known.",
    "404": "There is no such model or path.",
    "405": "The path exists, for other methods.",
    "408": "The body did not arrive in time.",
    "413": "The body is larger than the server's limit.",
    "431": "The headers are more, or longer, than the server takes.",
    "500": "The server or an engine failed.",
    "503": "No capacity now, or the model is still loading; `retry-after` says when to try again.",
    "504": "A time limit of the server ran out.",
}
_ADMIN_ERRORS = {
    "403": "The API key is known, but it is no admin's.",
    "409": "The engine is recording for somebody else.",
}
_NAME: Json = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_EVERYWHERE = ("401", "405", "431", "500")


@cache
def openapi_document() -> bytes:
    """As JSON; the same for the life of the process."""
    models = _GATEWAY_REQUESTS + _GATEWAY_ANSWERS + _COMMON_ANSWERS
    return _document("Headwater", _common_paths() | _gateway_paths(), models)


@cache
def router_document() -> bytes:
    """The same of a router that stands alone."""
    own: tuple[type[BaseModel], ...] = (ChatRequest, CompletionRequest, answers.Route)
    return _document("Headwater router", _common_paths() | _router_paths(), own + _COMMON_ANSWERS)


def _document(title: str, paths: Json, models: Sequence[type[BaseModel]]) -> bytes:
    errors = _ERRORS | _ADMIN_ERRORS
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": title,
            "version": package_version(),
            "description": "Fields beyond those listed are ignored; null is the same as absent. "
            "Integers are written as such: 1, not 1.0. "
            "Paths under `/v1` are also served without it.",
        },
        "security": [{"bearer": []}, {}],
        "paths": paths,
        "components": {
            "schemas": _schemas(models),
            "responses": {status: _error(text) for status, text in errors.items()},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return orjson.dumps(document)


def _router_paths() -> Json:
    bodies = (_json(ChatRequest), _json(CompletionRequest))
    schema = {"anyOf": [body["application/json"]["schema"] for body in bodies]}
    operation = _post("The engine that a request should go to", ChatRequest, _json(answers.Route))
    operation["requestBody"]["content"]["application/json"]["schema"] = schema
    return {"/v1/route": {"post": operation}}


def _common_paths() -> Json:
    return {
        "/health": {"get": _get("Whether this gateway answers", {}) | {"security": []}},
        "/version": {"get": _get("The server's version", _json(answers.Version))},
        "/metrics": {
            "get": _get("Prometheus metrics", {"text/plain": {"schema": {"type": "string"}}})
        },
        "/metrics/targets": {
            "get": _get(
                "Scrape ports, for Prometheus's HTTP service discovery", _plain_json("array"), "403"
            )
        },
        "/openapi.json": {"get": _get("This document", _json(answers.OpenApiDocument))},
        "/v1/models": {"get": _get("The models served here", _json(answers.ModelList))},
        "/v1/models/{name}": {
            "parameters": [_NAME],
            "get": _get("One model, by its name or an alias", _json(answers.Model), "404"),
        },
    }


def _gateway_paths() -> Json:
    return {
        "/debug/steps": {
            "parameters": [_parameter(name) for name in ("model", "engine", "last", "format")],
            "get": _get(
                "The engines' newest steps", _plain_json("object") | _lines(), "400", "403", "404"
            ),
        },
        "/debug/requests/{request_id}": {
            "parameters": [{**_NAME, "name": "request_id"}, _parameter("format")],
            "get": _get(
                "What happened to a request, and when",
                _plain_json("object") | _lines(),
                *("400", "403", "404"),
            ),
        },
        "/debug/profile": {
            "post": _post(
                "Record an engine's next steps: time per operator, and a Chrome trace",
                ProfileRequest,
                _plain_json("object"),
                *("403", "409"),
            )
        },
        "/v1/chat/completions": {
            "post": _post(
                "Answer a conversation", ChatRequest, _json(answers.ChatCompletion) | _events()
            )
        },
        "/v1/completions": {
            "post": _post(
                "Complete texts", CompletionRequest, _json(answers.Completion) | _events()
            )
        },
        "/tokenize": {
            "post": _post(
                "Token ids of a text or conversation", TokenizeRequest, _json(answers.Tokenized)
            )
        },
        "/detokenize": {
            "post": _post("The text of token ids", DetokenizeRequest, _json(answers.Detokenized))
        },
    }


def _get(summary: str, content: Json, *errors: str) -> Json:
    answer = {"description": summary} | ({"content": content} if content else {})
    return {"summary": summary, "responses": {"200": answer} | _refs(*_EVERYWHERE, *errors)}


def _post(summary: str, request: type[BaseModel], content: Json, *errors: str) -> Json:
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": _json(request)},
        "responses": {"200": {"description": summary, "content": content}}
        | _refs(*_ERRORS, *errors),
    }


def _refs(*statuses: str) -> Json:
    return {status: {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)}


def _json(model: type[BaseModel]) -> Json:
    return {
        "application/json": {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}},
    }


def _plain_json(kind: str) -> Json:
    """For operators to read: what is in it may change."""
    return {"application/json": {"schema": {"type": kind}}}


def _lines() -> Json:
    """One JSON object per line."""
    return {"application/jsonl": {"schema": {"type": "string"}}}


def _parameter(name: str) -> Json:
    return {"name": name, "in": "query", "schema": {"type": "string"}}


def _events() -> Json:
    """With ``stream``: chunks as server-sent events, ended by ``[DONE]``."""
    return {"text/event-stream": {"schema": {"type": "string"}}}


def _error(description: str) -> Json:
    return {"description": description, "content": _json(answers.Error)}


def _schemas(models: Sequence[type[BaseModel]]) -> Json:
    _, schemas = models_json_schema(
        [(model, "validation") for model in models],
        ref_template="#/components/schemas/{model}",
    )
    definitions: Json = schemas["$defs"]
    return definitions
