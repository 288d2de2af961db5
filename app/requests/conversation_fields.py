"""What a chat template is given beside the messages, as chat and tokenize requests carry it.

Must not know how answers are generated, nor any template.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.requests.border import Border, invalid
from app.requests.chat_message import ChatMessage, check_messages
from app.requests.json_size import is_larger

MAX_TOOLS = 128
MAX_TOOL_VALUES = 50_000
MAX_TOOL_DEPTH = 32
"""Of all tools together: they are read value by value, and recursively."""

MAX_TEMPLATE_KWARGS = 16

_TEMPLATE_KWARG = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_TEMPLATE_STRING = re.compile(r"[A-Za-z0-9 _.,:/+-]{0,64}")
"""Has no room for a control token: what templates write is not guarded as messages are."""

_RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "bos_token",
        "chat_template",
        "continue_final_message",
        "documents",
        "eos_token",
        "messages",
        "raise_exception",
        "strftime_now",
        "tokenize",
        "tools",
    }
)


def _checked_template_kwargs(value: object) -> object:
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_TEMPLATE_KWARGS:
        raise PydanticCustomError(
            "template_kwargs",
            "at most {limit} entries are allowed",
            {"limit": MAX_TEMPLATE_KWARGS},
        )
    for key, item in value.items():
        if not _TEMPLATE_KWARG.fullmatch(key) or key in _RESERVED_KWARGS:
            raise PydanticCustomError(
                "template_kwargs",
                "keys must be names that a template may be given, such as 'enable_thinking'",
            )
        is_scalar = item is None or isinstance(item, bool | int | float)
        if not is_scalar and not (isinstance(item, str) and _TEMPLATE_STRING.fullmatch(item)):
            raise PydanticCustomError(
                "template_kwargs",
                "'{key}' must be null, a boolean, a number or a plain text of at most 64 "
                "characters",
                {"key": key},
            )
    return value


TemplateKwargs = Annotated[
    dict[str, Any],
    BeforeValidator(_checked_template_kwargs),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {
                "pattern": f"^{_TEMPLATE_KWARG.pattern}$",
                "not": {"enum": sorted(_RESERVED_KWARGS)},
            },
            "additionalProperties": {
                "anyOf": [
                    {"type": ["null", "boolean", "number"]},
                    {"type": "string", "pattern": f"^{_TEMPLATE_STRING.pattern}$"},
                ]
            },
            "maxProperties": MAX_TEMPLATE_KWARGS,
        }
    ),
]
Tool = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {"name": {"type": "string", "minLength": 1}},
                },
            },
        }
    ),
]


class ConversationFields(Border):
    """Fields beside ``messages``."""

    add_generation_prompt: bool | None = None
    """Whether the prompt ends where the assistant's answer begins; it does unless
    ``continue_final_message``.
    """
    continue_final_message: bool | None = None
    """The prompt ends within the last message, and the answer goes on from there."""
    chat_template_kwargs: TemplateKwargs | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    """No call can be forced."""

    @property
    def adds_generation_prompt(self) -> bool:
        if self.add_generation_prompt is None:
            return not self.continue_final_message
        return self.add_generation_prompt

    @property
    def continues_final_message(self) -> bool:
        return bool(self.continue_final_message)

    def template_tools(self) -> list[dict[str, Any]] | None:
        """Definitions for a template that takes them; calls in the answer are not parsed."""
        return None if self.tool_choice == "none" else self.tools or None

    def template_kwargs(self) -> Mapping[str, Any]:
        """More names for the template; none of those that it is always given."""
        return self.chat_template_kwargs or {}


def check_conversation(request: ConversationFields, messages: Sequence[ChatMessage]) -> None:
    """Raises ``InvalidRequestError`` for what no single field shows."""
    check_messages(messages)
    if request.add_generation_prompt and request.continue_final_message:
        raise invalid("continue_final_message", "it excludes 'add_generation_prompt'")
    if request.continue_final_message and not messages[-1].content:
        raise invalid("continue_final_message", "the last message must have content to go on from")
    if request.tools:
        _check_tools(request.tools)


def _check_tools(tools: Sequence[Mapping[str, Any]]) -> None:
    if is_larger(tools, max_values=MAX_TOOL_VALUES, max_depth=MAX_TOOL_DEPTH):
        raise invalid(
            "tools",
            f"at most {MAX_TOOL_VALUES} values, nested at most {MAX_TOOL_DEPTH} deep, are allowed",
        )
    for position, tool in enumerate(tools):
        if tool.get("type") != "function":
            raise invalid(f"tools[{position}].type", "it must be 'function'")
        function = tool.get("function")
        if not isinstance(function, dict):
            raise invalid(f"tools[{position}].function", "it must be an object with a 'name'")
        if not isinstance(function.get("name"), str) or not function["name"]:
            raise invalid(f"tools[{position}].function.name", "it must be a text")
