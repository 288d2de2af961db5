"""The body of ``POST /v1/chat/completions``: what is accepted, what is ignored, what is refused.

Unknown fields are ignored, as clients send many; known ones whose value would change the answer in
a way that is not supported are refused with the name of the field.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from app.requests.border import invalid, validated
from app.requests.chat_message import Messages, check_messages_size
from app.requests.conversation_fields import ConversationFields, check_conversation
from app.requests.sampling_fields import (
    MAX_TOP_LOGPROBS,
    SamplingFields,
    check_fanout,
    check_supported,
)


class ChatRequest(ConversationFields, SamplingFields):
    """The fields that are read; null is the same as absent."""

    refused: ClassVar[Mapping[str, str]] = {
        **SamplingFields.refused,
        "audio": "audio output is not supported",
        "best_of": "it is only allowed for /v1/completions",
        "chat_template": "a template comes with its model; 'chat_template_kwargs' may steer it",
        "documents": "put the documents into 'messages'",
        "echo": "it is only allowed for /v1/completions",
        "function_call": "functions are not supported; use 'tools'",
        "functions": "functions are not supported; use 'tools'",
    }

    reasons: ClassVar[Mapping[str, str]] = {
        **SamplingFields.reasons,
        "messages.content.type": "only parts of the type 'text' are supported",
        "modalities": "only text is supported",
        "tool_choice": "no call can be forced; 'none' and 'auto' are allowed",
    }

    messages: Messages
    max_completion_tokens: Annotated[int, Field(ge=0)] | None = None
    """The newer name of ``max_tokens``, which it overrides."""
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    modalities: Annotated[list[Literal["text"]], Field(fail_fast=True)] | None = None

    @property
    def num_max_tokens(self) -> int | None:
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    @property
    def max_tokens_param(self) -> str:
        return "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"

    @property
    def prompt_param(self) -> str:
        return "messages"

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def parse_chat_request(body: Mapping[str, Any], *, max_fanout: int) -> ChatRequest:
    """Raises ``InvalidRequestError`` with the first offending field as its ``param``.

    ``max_fanout``: the most answers that one request may ask for.
    """
    check_messages_size(body)
    request = validated(ChatRequest, body)
    check_conversation(request, request.messages)
    check_supported(request, body)
    check_fanout(request, 1, max_fanout)
    if request.top_logprobs and not request.logprobs:
        raise invalid("top_logprobs", "it is only allowed together with logprobs=true")
    return request
