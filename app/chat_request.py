"""The body of ``POST /v1/chat/completions``: what is accepted, what is ignored, what is refused.

Unknown fields are ignored, as clients send many; known ones whose value would change the answer in
a way that is not supported are refused with the name of the field. pydantic stops here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from app.errors import InvalidRequestError

MAX_MESSAGES = 10_000
"""And as many content parts: validating more would hold up other clients' streams."""

MAX_TOOL_CALL_VALUES = 50_000
MAX_TOOL_CALL_DEPTH = 32
"""Of all messages' tool calls together: they are read value by value, and recursively."""

MAX_STOP_STRINGS = 4
MAX_STOP_STRING_CHARS = 1000


class _Border(BaseModel):
    # Every list of something fails fast: a megabyte of wrong items would make gigabytes of errors.
    # Strict: true is not 1, and "1" is not 1.
    model_config = ConfigDict(
        frozen=True, strict=True, extra="ignore", allow_inf_nan=False, protected_namespaces=()
    )


class TextPart(_Border):
    """The only kind of content part that a text model takes."""

    type: Literal["text"]
    text: str


def _string_or_list(value: object) -> str:
    return "list" if isinstance(value, list) else "string"


Content = Annotated[
    Annotated[str, Tag("string")] | Annotated[list[TextPart], Field(fail_fast=True), Tag("list")],
    Discriminator(_string_or_list),
]
Stop = Annotated[
    Annotated[str, Field(min_length=1, max_length=MAX_STOP_STRING_CHARS), Tag("string")]
    | Annotated[
        list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_STRING_CHARS)]],
        Field(max_length=MAX_STOP_STRINGS, fail_fast=True),
        Tag("list"),
    ],
    Discriminator(_string_or_list),
]


class ChatMessage(_Border):
    """One turn."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    name: str | None = None
    tool_calls: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
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


class StreamOptions(_Border):
    include_usage: bool | None = None


class ResponseFormat(_Border):
    type: str


class ChatRequest(_Border):
    """The fields that are read; null is the same as absent."""

    model: str
    messages: Annotated[list[ChatMessage], Field(fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    seed: int | None = None
    stop: Stop | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    """For benchmarks: generate until ``max_tokens``."""

    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, Any] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    functions: list[Any] | None = None
    modalities: Annotated[list[str], Field(fail_fast=True)] | None = None
    audio: dict[str, Any] | None = None

    @property
    def stops(self) -> list[str]:
        if self.stop is None:
            return []
        return [self.stop] if isinstance(self.stop, str) else self.stop

    @property
    def num_max_tokens(self) -> int | None:
        """Asked for; None is as many as the context holds."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def max_tokens_param(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def parse_chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """Raises ``InvalidRequestError`` with the first offending field as its ``param``."""
    _check_size(body.get("messages"))
    try:
        request = ChatRequest.model_validate(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        param = _param(first["loc"], body, is_missing=first["type"] == "missing")
        detail = first["msg"][:1].lower() + first["msg"][1:]
        raise InvalidRequestError(f"Invalid value for '{param}': {detail}.", param=param) from None
    _check_messages(request.messages)
    _refuse_unsupported(request)
    return request


def _check_size(messages: object) -> None:
    if not isinstance(messages, list):
        return
    contents = [item.get("content") for item in messages if isinstance(item, dict)]
    num_parts = sum(len(content) for content in contents if isinstance(content, list))
    if max(len(messages), num_parts) > MAX_MESSAGES:
        raise InvalidRequestError(
            f"'messages' must hold at most {MAX_MESSAGES} messages and as many content parts.",
            param="messages",
        )
    _check_tool_calls([item.get("tool_calls") for item in messages if isinstance(item, dict)])


def _check_tool_calls(values: Sequence[object]) -> None:
    """``values``: whatever stands as ``tool_calls`` in the messages. Counts level by level."""
    level = _containers(values)
    num_values = depth = 0
    while level:
        num_values += sum(map(len, level))
        depth += 1
        if num_values > MAX_TOOL_CALL_VALUES or depth > MAX_TOOL_CALL_DEPTH:
            raise InvalidRequestError(
                f"The tool calls in 'messages' must hold at most {MAX_TOOL_CALL_VALUES} values, "
                f"nested at most {MAX_TOOL_CALL_DEPTH} deep.",
                param="messages",
            )
        level = _containers(
            child for item in level for child in (item.values() if isinstance(item, dict) else item)
        )


def _containers(values: Iterable[object]) -> list[dict[str, Any] | list[Any]]:
    return [value for value in values if isinstance(value, dict | list)]


def _param(location: Sequence[int | str], body: Any, *, is_missing: bool) -> str:
    """``messages[0].content``: the steps of ``location`` through the body; pydantic adds others."""
    path = ""
    value = body
    for depth, step in enumerate(location):
        is_absent = is_missing and depth == len(location) - 1
        if isinstance(step, int):
            if isinstance(value, list) and step < len(value):
                path += f"[{step}]"
                value = value[step]
        elif isinstance(value, dict) and (step in value or is_absent):
            path += f".{step}" if path else step
            value = value.get(step)
    return path


def _check_messages(messages: Sequence[ChatMessage]) -> None:
    if not messages:
        raise InvalidRequestError(
            "'messages' must hold at least one message.", param="messages", code="empty_array"
        )
    for position, message in enumerate(messages):
        is_call = message.role == "assistant" and message.tool_calls
        if message.content is None and not is_call:
            param = f"messages[{position}].content"
            raise InvalidRequestError(f"'{param}' must be a string or text parts.", param=param)


def _refuse_unsupported(request: ChatRequest) -> None:
    response_type = "text" if request.response_format is None else request.response_format.type
    is_text_only = request.modalities in (None, [], ["text"])
    refusals = [
        ("n", request.n not in (None, 1), "only n=1 is supported"),
        ("logprobs", request.logprobs, "log probabilities are not supported"),
        ("top_logprobs", request.top_logprobs, "log probabilities are not supported"),
        ("logit_bias", request.logit_bias, "a logit bias is not supported"),
        ("presence_penalty", request.presence_penalty, "only 0 is supported"),
        ("frequency_penalty", request.frequency_penalty, "only 0 is supported"),
        ("response_format.type", response_type != "text", "only 'text' is supported"),
        ("tools", request.tools and request.tool_choice != "none", "tools are not supported"),
        ("functions", request.functions, "functions are not supported"),
        ("modalities", not is_text_only, "only ['text'] is supported"),
        ("audio", request.audio, "audio output is not supported"),
        (
            "stream_options",
            request.stream_options is not None and not request.stream,
            "it is only allowed together with stream=true",
        ),
    ]
    for param, is_refused, reason in refusals:
        if is_refused:
            raise InvalidRequestError(f"Unsupported value for '{param}': {reason}.", param=param)
