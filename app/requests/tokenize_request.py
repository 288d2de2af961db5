"""The bodies of ``POST /tokenize`` and ``POST /detokenize``."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from app.requests.border import Border, invalid, validated
from app.requests.chat_message import Messages, check_messages_size
from app.requests.conversation_fields import ConversationFields, check_conversation
from app.requests.sampling_fields import TokenId


class TokenizeRequest(ConversationFields):
    """A text, or messages that the chat template makes one of; null is the same as absent."""

    model_config = ConfigDict(
        json_schema_extra={
            "oneOf": [
                {
                    "required": ["prompt"],
                    "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}},
                },
                {
                    "required": ["messages"],
                    "properties": {"prompt": {"type": "null"}, "messages": {"type": "array"}},
                },
            ]
        }
    )

    model: str
    prompt: str | None = None
    messages: Messages | None = None
    """Instead of ``prompt``."""
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @property
    def adds_special_tokens(self) -> bool:
        """A text gets what the tokenizer puts around one, as in completions; templates write their
        own.
        """
        if self.add_special_tokens is None:
            return self.messages is None
        return self.add_special_tokens


class DetokenizeRequest(Border):
    model: str
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]


def parse_tokenize_request(body: Mapping[str, Any]) -> TokenizeRequest:
    """Raises ``InvalidRequestError`` with the first offending field as its ``param``."""
    check_messages_size(body)
    request = validated(TokenizeRequest, body)
    if (request.prompt is None) == (request.messages is None):
        raise invalid("prompt", "give either 'prompt' or 'messages'")
    if request.messages is not None:
        check_conversation(request, request.messages)
    return request


def parse_detokenize_request(body: Mapping[str, Any]) -> DetokenizeRequest:
    """Raises ``InvalidRequestError`` with the first offending field as its ``param``."""
    return validated(DetokenizeRequest, body)
