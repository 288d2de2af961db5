"""What every answer of the gateway must hold to, whatever was asked.

The document that the gateway serves is the judge of shapes. Must not know how requests are made.
"""

import json
from typing import Any

from jsonschema_rs import Draft202012Validator

from tests.fuzz.answer_parts import check_events, check_whole
from tests.fuzz.exchange import Answer, Request

ERROR_KEYS = {"message", "type", "param", "code"}


class AnswerCheck:
    """``check`` raises ``AssertionError`` with the whole exchange."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._components = document["components"]
        self._paths: dict[str, Any] = document["paths"]
        self._validators: dict[str, Draft202012Validator] = {}

    def check(self, request: Request, answer: Answer) -> None:
        try:
            self._check(request, answer)
        except (AssertionError, ValueError, KeyError) as error:
            raise AssertionError(f"{error!r}\n  asked: {request}\n  got: {answer}") from error

    def _check(self, request: Request, answer: Answer) -> None:
        assert answer.status < 500, "a failure of the server"
        assert answer.headers.get("x-request-id"), "no request id"
        if request.method == "HEAD":
            return
        if answer.status >= 400:
            self._check_error(answer)
        operation = self._operation(request)
        if operation is None:
            assert answer.status in (401, 404, 405), "an unknown route was answered"
            return
        response = self._resolved(operation["responses"].get(str(answer.status)))
        assert response is not None, "a status that the document does not name"
        content = response.get("content", {})
        if not content:
            assert answer.body == b""
            return
        assert answer.media_type in content, "a media type that the document does not name"
        if answer.media_type == "application/json":
            value = json.loads(answer.body)
            self._validate(content["application/json"]["schema"], value)
            if "choices" in value:
                check_whole(value)
        elif answer.media_type == "text/event-stream":
            check_events(answer.body)

    def _check_error(self, answer: Answer) -> None:
        assert answer.media_type == "application/json"
        error = json.loads(answer.body)["error"]
        assert error.keys() >= ERROR_KEYS, "keys are missing"
        assert error["message"].strip(), "no message"

    def _operation(self, request: Request) -> dict[str, Any] | None:
        """What the document says about this method of this path, if it names it."""
        bare = request.path.removeprefix("/v1")  # the document says that both are served
        if bare.startswith("/models/"):
            bare = "/models/{name}"
        elif bare.startswith("/debug/requests/"):
            bare = "/debug/requests/{request_id}"
        item = self._paths.get(bare) or self._paths.get("/v1" + bare)
        operation: dict[str, Any] | None = (item or {}).get(request.method.lower())
        return operation

    def _resolved(self, response: dict[str, Any] | None) -> dict[str, Any] | None:
        if response is None or "$ref" not in response:
            return response
        resolved: dict[str, Any] = self._components["responses"][response["$ref"].split("/")[-1]]
        return resolved

    def _validate(self, schema: dict[str, Any], value: object) -> None:
        key = json.dumps(schema)
        if key not in self._validators:
            self._validators[key] = Draft202012Validator(
                {**schema, "components": {"schemas": self._components["schemas"]}}
            )
        self._validators[key].validate(value)
