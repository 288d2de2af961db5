"""The shapes of answers, for the OpenAPI document only: answers are made as plain data.

OpenAI's shapes; fields that only appear on request are optional here. Must not be used to build
or check an answer at run time.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Answer(BaseModel):
    """A field without a default is always there, though it may be null."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", protected_namespaces=())


class ErrorDetail(_Answer):
    message: str
    type: str
    param: str | None
    code: str | None
    request_id: str


class Error(_Answer):
    """Every answer with a status of 400 or more."""

    error: ErrorDetail


class PromptTokensDetails(_Answer):
    cached_tokens: int
    audio_tokens: int


class CompletionTokensDetails(_Answer):
    reasoning_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class Usage(_Answer):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class TopLogprob(_Answer):
    token: str
    logprob: float = Field(ge=-9999, le=0)
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(_Answer):
    content: list[TokenLogprob] | None
    refusal: list[TokenLogprob] | None


class AssistantMessage(_Answer):
    role: Literal["assistant"]
    content: str | None
    refusal: str | None


class ChatChoice(_Answer):
    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None


class ChatCompletion(_Answer):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str | None
    service_tier: Literal["default", "flex", "priority"] | None = None
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | None = None


class CompletionLogprobs(_Answer):
    """Lists of one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


class CompletionChoice(_Answer):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"]
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Completion(_Answer):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str | None
    service_tier: Literal["default", "flex", "priority"] | None = None
    choices: list[CompletionChoice]
    usage: Usage


class Tokenized(_Answer):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Detokenized(_Answer):
    prompt: str


class RouteOption(_Answer):
    engine_id: str
    address: str | None
    predicted_cached_tokens: int
    predicted_ttft_ms: float


class Route(RouteOption):
    id: str
    object: Literal["route"]
    model: str
    prompt_tokens: int
    source: Literal["local", "host", "disk", "peer"]
    alternatives: list[RouteOption]


class Model(_Answer):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    status: Literal["ready", "loading"]
    max_model_len: int | None


class ModelList(_Answer):
    object: Literal["list"]
    data: list[Model]


class Version(_Answer):
    version: str


class OpenApiDocument(BaseModel):
    """This document."""

    openapi: str
    info: dict[str, Any]
    paths: dict[str, Any]
