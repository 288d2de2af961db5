"""Requests that schemathesis makes of the OpenAPI document: what it allows, and what it forbids."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import schemathesis
from hypothesis import strategies as st
from schemathesis.generation import GenerationMode
from schemathesis.generation.case import Case
from schemathesis.generation.drivers import CoverageGenerator
from schemathesis.generation.feedback import NO_FEEDBACK
from schemathesis.generation.overrides import Override
from schemathesis.schemas import APIOperation

from tests.fuzz.exchange import Request

_SLOW_PATHS = {"/debug/profile"}
"""Of an idle engine it takes as long as was asked for, by default 30 s."""
_DROPPED_HEADERS = {"accept-encoding", "connection", "x-schemathesis-testcaseid", "user-agent"}


class SchemaCases:
    """Of one document, for a gateway that serves ``model``."""

    def __init__(self, document: dict[str, Any], model: str) -> None:
        # Only with a model that exists does a request get any further.
        known: dict[str, Any] = json.loads(json.dumps(document))
        for schema in known["components"]["schemas"].values():
            if "model" in schema["properties"]:
                schema["properties"]["model"] = {"enum": [model]}
        # Of this model, which has no token to begin with, an empty text is an empty prompt.
        completion = known["components"]["schemas"]["CompletionRequest"]["properties"]
        completion["prompt"]["oneOf"][0]["minLength"] = 1
        self._schema = schemathesis.openapi.from_dict(known)
        self._operations: list[APIOperation] = [
            self._schema[path][method]
            for path, item in known["paths"].items()
            if path not in _SLOW_PATHS
            for method in item.keys() & {"get", "post"}
        ]

    def boundaries(self) -> Iterator[Request]:
        """Every keyword of every schema at, within and beyond its bounds; every method."""
        for operation in self._operations:
            yield from map(
                _request,
                CoverageGenerator(
                    operation=operation,
                    generation_modes=list(GenerationMode),
                    generation_config=self._schema.config.generation_for(
                        operation=operation, phase="coverage"
                    ),
                    auth_storage=None,
                    override=Override(),
                    feedback=NO_FEEDBACK,
                ),
            )

    def requests(self) -> st.SearchStrategy[list[Request]]:
        """The same request in several ways: as drawn, and streamed, under the bare path."""
        cases = [
            operation.as_strategy(generation_mode=mode)
            for operation in self._operations
            for mode in GenerationMode
            if operation.body
        ]
        cases += [o.as_strategy() for o in self._operations if o.path_parameters]
        return st.one_of(cases).map(_request).map(_ways)


def _request(case: Case) -> Request:
    drawn = case.as_transport_kwargs(base_url="http://gateway")
    url = httpx.URL(drawn["url"]).copy_merge_params(drawn.get("params") or {})
    headers = {k: v for k, v in drawn["headers"].items() if k.lower() not in _DROPPED_HEADERS}
    body = drawn.get("data") or b""
    if "json" in drawn:
        body = json.dumps(drawn["json"]).encode()
    elif isinstance(body, str):
        body = body.encode()
    return Request(drawn["method"], url.raw_path.decode(), body, headers)


def _ways(request: Request) -> list[Request]:
    try:
        fields = json.loads(request.body)
    except ValueError:
        return [request]
    if not isinstance(fields, dict):
        return [request]
    body = json.dumps(fields | {"stream": not fields.get("stream")}).encode()
    bare = request.target.removeprefix("/v1")
    return [request, Request(request.method, bare, body, request.headers)]
