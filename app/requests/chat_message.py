"""The messages of a conversation: what is accepted, and how a chat template reads them."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import orjson
from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, Tag

from app.errors import InvalidRequestError
from app.requests.border import Border
from app.requests.json_size import is_larger

MAX_MESSAGES = 10_000
"""And as many content parts: validating more would hold up other clients' streams."""

MAX_TOOL_CALL_VALUES = 50_000
MAX_TOOL_CALL_DEPTH = 32
"""Of all messages' tool calls together: they are read value by value, and recursively."""


def _string_or_list(value: object) -> str:
    return "list" if isinstance(value, list) else "string"


def _with_decoded_arguments(tool_calls: object) -> object:
    """Clients send a call's arguments as JSON in a string; templates write them as JSON again."""
    if not isinstance(tool_calls, list):
        return tool_calls
    return [_decoded(call) if isinstance(call, dict) else call for call in tool_calls]


def _decoded(call: dict[str, Any]) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = orjson.loads(function["arguments"] or "{}")
    except orjson.JSONDecodeError:
        return call  # a model's own words that are no JSON: the template shows them as they are
    if not isinstance(arguments, dict):
        return call
    return call | {"function": function | {"arguments": arguments}}


class TextPart(Border):
    """The only kind of content part that a text model takes."""

    type: Literal["text"]
    text: str


Content = Annotated[
    Annotated[str, Tag("string")] | Annotated[list[TextPart], Field(fail_fast=True), Tag("list")],
    Discriminator(_string_or_list),
]
ToolCalls = Annotated[
    list[dict[str, Any]], Field(fail_fast=True), BeforeValidator(_with_decoded_arguments)
]


class ChatMessage(Border):
    """One turn."""

    model_config = ConfigDict(
        json_schema_extra={  # what ``check_messages`` checks
            "anyOf": [
                {
                    "required": ["content"],
                    "properties": {"content": {"type": ["string", "array"]}},
                },
                {
                    "required": ["tool_calls"],
                    "properties": {
                        "role": {"const": "assistant"},
                        "tool_calls": {"type": "array", "minItems": 1},
                    },
                },
            ]
        }
    )

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: ToolCalls | None = None
    tool_call_id: str | None = None

    def for_template(self) -> dict[str, Any]:
        """As chat templates read it: text only, and ``developer`` is the system's newer name."""
        content = self.content
        if isinstance(content, list):
            content = "\n".join(part.text for part in content)
        message: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": content or "",
        }
        extra = {
            "name": self.name,
            "tool_calls": self.tool_calls,
            "tool_call_id": self.tool_call_id,
        }
        return message | {key: value for key, value in extra.items() if value is not None}


Messages = Annotated[
    list[ChatMessage],
    Field(fail_fast=True, json_schema_extra={"minItems": 1, "maxItems": MAX_MESSAGES}),
]


def check_messages_size(body: Mapping[str, Any]) -> None:
    """Before validation, whose time grows with them."""
    messages = body.get("messages")
    if not isinstance(messages, list):
        return
    items = [item for item in messages if isinstance(item, dict)]
    contents = [item.get("content") for item in items]
    num_parts = sum(len(content) for content in contents if isinstance(content, list))
    if max(len(messages), num_parts) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"'messages' must hold at most {MAX_MESSAGES} messages and as many content parts.",
            param="messages",
        )
    _check_tool_calls([item.get("tool_calls") for item in items])


def check_messages(messages: Sequence[ChatMessage]) -> None:
    """What validation of each message alone does not see."""
    if not messages:
        raise InvalidRequestError(
            "'messages' must hold at least one message.", param="messages", code="empty_array"
        )
    for position, message in enumerate(messages):
        is_call = message.role == "assistant" and message.tool_calls
        if message.content is None and not is_call:
            param = f"messages[{position}].content"
            raise InvalidRequestError(f"'{param}' must be a string or text parts.", param=param)
    _check_tool_calls([message.tool_calls for message in messages])  # their arguments are read now


def _check_tool_calls(values: Sequence[object]) -> None:
    """``values``: whatever stands as ``tool_calls`` in the messages."""
    if is_larger(values, max_values=MAX_TOOL_CALL_VALUES, max_depth=MAX_TOOL_CALL_DEPTH):
        raise InvalidRequestError(
            f"The tool calls in 'messages' must hold at most {MAX_TOOL_CALL_VALUES} values, "
            f"nested at most {MAX_TOOL_CALL_DEPTH} deep.",
            param="messages",
        )
