"""The body of ``POST /v1/completions``: what is accepted, what is ignored, what is refused."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Discriminator, Field, Tag

from app.requests.border import invalid, validated
from app.requests.sampling_fields import (
    MAX_CHOICES,
    MAX_TOP_LOGPROBS,
    SamplingFields,
    TokenId,
    check_fanout,
    check_supported,
)

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, of this route only."""


def _kind_of_prompt(value: object) -> str:
    if not isinstance(value, list):
        return "string"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "id lists"
    return "ids" if isinstance(first, int) else "strings"


_TokenIds = Annotated[list[TokenId], Field(min_length=1, fail_fast=True)]
Prompt = Annotated[
    Annotated[str, Tag("string")]
    | Annotated[list[str], Field(min_length=1, fail_fast=True), Tag("strings")]
    | Annotated[_TokenIds, Tag("ids")]
    | Annotated[list[_TokenIds], Field(min_length=1, fail_fast=True), Tag("id lists")],
    Discriminator(_kind_of_prompt),
]


class CompletionRequest(SamplingFields):
    """The fields that are read; null is the same as absent."""

    refused: ClassVar[Mapping[str, str]] = {
        **SamplingFields.refused,
        "prompt_embeds": "send 'prompt'",
        "suffix": "completing the middle of a text is not supported",
    }

    reasons: ClassVar[Mapping[str, str]] = {
        **SamplingFields.reasons,
        "prompt": "it must be a text, token ids, or a list of either, and not empty",
    }

    default_max_tokens: ClassVar[int | None] = DEFAULT_MAX_TOKENS

    prompt: Prompt
    """One text or its token ids, or several of them."""
    add_special_tokens: bool | None = None
    """Whether a text gets the tokens that the model's tokenizer puts around one; yes if absent."""
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None

    def prompts(self) -> list[str | list[int]]:
        """Texts and lists of token ids; the answer's choices are in their order."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [self.prompt]
        return list(self.prompt)

    @property
    def adds_special_tokens(self) -> bool:
        return self.add_special_tokens is not False

    @property
    def prompt_param(self) -> str:
        return "prompt"

    @property
    def num_samples(self) -> int:
        return self.best_of or self.n or 1

    @property
    def echoes_prompt(self) -> bool:
        return bool(self.echo)

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def num_prompt_logprobs(self) -> int | None:
        return self.logprobs if self.echo else None


def parse_completion_request(body: Mapping[str, Any], *, max_fanout: int) -> CompletionRequest:
    """Raises ``InvalidRequestError`` with the first offending field as its ``param``.

    ``max_fanout``: the most answers that one request may ask for, over all its prompts.
    """
    _check_num_prompts(body.get("prompt"), max_fanout)
    request = validated(CompletionRequest, body)
    check_supported(request, body)
    check_fanout(request, len(request.prompts()), max_fanout)
    if request.best_of is not None and request.best_of < (request.n or 1):
        raise invalid("best_of", "it must be at least 'n'")
    if request.num_samples > (request.n or 1) and request.stream:
        raise invalid("best_of", "it must equal 'n' with stream=true")
    return request


def _check_num_prompts(prompt: object, max_fanout: int) -> None:
    """Before validation, whose time grows with them."""
    if _kind_of_prompt(prompt) in ("strings", "id lists"):
        assert isinstance(prompt, list)
        if len(prompt) > max_fanout:
            raise invalid("prompt", f"at most {max_fanout} prompts are allowed in one request")
