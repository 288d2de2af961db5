"""The fields of a request that say how answers are generated, chat and text completions alike.

Field names and ranges are OpenAI's; those that vLLM's server adds have its names. Must not know
messages or prompts, nor the model: ``app.requests.sampling`` checks what depends on it.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema
from pydantic_core import PydanticCustomError

from app.requests.answer_options import AnswerOptions
from app.requests.border import Border, invalid, unsupported
from app.requests.service_class import ServiceTier

MAX_CHOICES = 128
"""OpenAI's bound of ``n``; the gateway's own, ``max_fanout``, is lower by default."""

MAX_TOP_LOGPROBS = 20

MAX_STOP_STRINGS = 16
"""OpenAI allows 4. Each one is looked for in every piece of text."""

MAX_STOP_STRING_CHARS = 1000
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIASES = 1024
MAX_CACHE_SALT_CHARS = 128
"""As in vLLM's server."""

_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")
_MAX_TOKEN_ID = 2**31 - 1


def _string_or_list(value: object) -> str:
    return "list" if isinstance(value, list) else "string"


def _checked_logit_bias(value: object) -> object:
    """Checked by hand: each wrong entry would be an error, and named by the client's own words."""
    if not isinstance(value, dict):
        return value
    if len(value) > MAX_LOGIT_BIASES:
        raise PydanticCustomError(
            "logit_bias", "at most {limit} entries are allowed", {"limit": MAX_LOGIT_BIASES}
        )
    for key, bias in value.items():
        if not _TOKEN_ID.fullmatch(key):
            raise PydanticCustomError("logit_bias", "keys must be token ids, such as '50256'")
        is_number = isinstance(bias, int | float) and not isinstance(bias, bool)
        if not is_number or not -100 <= bias <= 100:
            raise PydanticCustomError(
                "logit_bias", "the bias of {key} must be a number from -100 to 100", {"key": key}
            )
    return value


StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_STRING_CHARS)]
Stop = Annotated[
    Annotated[StopString, Tag("string")]
    | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True), Tag("list")],
    Discriminator(_string_or_list),
]
Hint = Annotated[
    str | None, BeforeValidator(lambda value: value if isinstance(value, str) else None)
]
"""It cannot change the answer, so that a wrong one is ignored."""
TokenId = Annotated[int, Field(ge=0, le=_MAX_TOKEN_ID)]
LogitBias = Annotated[
    dict[str, float],
    BeforeValidator(_checked_logit_bias),
    WithJsonSchema(
        {
            "type": "object",
            "propertyNames": {"pattern": f"^({_TOKEN_ID.pattern})$"},
            "additionalProperties": {"type": "number", "minimum": -100, "maximum": 100},
            "maxProperties": MAX_LOGIT_BIASES,
        }
    ),
]


class StreamOptions(Border):
    """What a stream carries beside the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ResponseFormat(Border):
    """Structured outputs are not supported."""

    type: Literal["text"]


_REFUSED = {
    "allowed_token_ids": "restricting the vocabulary is not supported",
    "bad_words": "forbidding words is not supported; use 'logit_bias'",
    "guided_choice": "structured outputs are not supported",
    "guided_grammar": "structured outputs are not supported",
    "guided_json": "structured outputs are not supported",
    "guided_regex": "structured outputs are not supported",
    "logits_processors": "logits processors are not supported",
    "prompt_logprobs": "use 'echo' and 'logprobs' of /v1/completions",
    "return_tokens_as_token_ids": "use 'return_token_ids'",
    "structured_outputs": "structured outputs are not supported",
    "truncate_prompt_tokens": "prompts are never cut; shorten the prompt",
    "use_beam_search": "beam search is not supported",
}


class SamplingFields(Border):
    """Read by ``app.requests.sampling`` and, as ``options()``, by whoever builds the answer."""

    refused: ClassVar[Mapping[str, str]] = _REFUSED
    """Fields with the reason why any value but null, false or an empty one is refused."""

    reasons: ClassVar[Mapping[str, str]] = {
        "response_format.type": "structured outputs are not supported; only 'text' is allowed",
        "skip_special_tokens": "special tokens are never shown; only true is allowed",
    }

    default_max_tokens: ClassVar[int | None] = None
    """None is as many as the context holds."""

    model: str
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    """0 computes, and caches, the prompt only."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    """0 and -1 keep all tokens."""
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    logit_bias: LogitBias | None = None
    seed: int | None = None
    stop: Stop | None = None
    stop_token_ids: (
        Annotated[list[TokenId], Field(max_length=MAX_STOP_TOKEN_IDS, fail_fast=True)] | None
    ) = None
    include_stop_str_in_output: bool | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    ignore_eos: bool | None = None
    """For benchmarks: generate until ``max_tokens``."""
    skip_special_tokens: Literal[True] | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    return_token_ids: bool | None = None
    service_tier: ServiceTier | None = None
    """``priority`` and ``fast`` are the interactive class, ``default`` is standard, ``flex`` batch;
    the rest, and none, is what the server is configured for. Answers name the one that was used.
    """
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_CHARS)] | None = None
    """Only requests with the same one share cached prefixes: how long an answer takes then tells
    others nothing of this prompt.
    """
    prompt_cache_key: Hint = None
    """Requests with the same one are sent where the others went, if all else is equal."""
    user: Hint = None
    """Does the same where no ``prompt_cache_key`` is given."""

    @property
    def num_max_tokens(self) -> int | None:
        """Asked for; None is left open."""
        return self.max_tokens

    @property
    def max_tokens_param(self) -> str:
        return "max_tokens"

    @property
    @abstractmethod
    def prompt_param(self) -> str:
        """The field that the prompt is made of."""

    @property
    def num_samples(self) -> int:
        """Generated per prompt."""
        return self.n or 1

    @property
    def echoes_prompt(self) -> bool:
        return False

    @property
    @abstractmethod
    def num_logprobs(self) -> int | None:
        """Alternatives asked for per generated token; None: no log probabilities."""

    @property
    def num_prompt_logprobs(self) -> int | None:
        """The same per token of the prompt."""
        return None

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    def options(self) -> AnswerOptions:
        """What the answer is to look like."""
        stream_options = self.stream_options or StreamOptions()
        return AnswerOptions(
            num_choices=self.n or 1,
            num_samples=self.num_samples,
            stops=self.stops,
            includes_stop=bool(self.include_stop_str_in_output),
            num_top_logprobs=self.num_logprobs,
            echoes_prompt=self.echoes_prompt,
            is_stream=bool(self.stream),
            includes_usage=bool(stream_options.include_usage),
            has_continuous_usage=bool(stream_options.continuous_usage_stats),
            returns_token_ids=bool(self.return_token_ids),
        )


def check_supported(request: SamplingFields, body: Mapping[str, Any]) -> None:
    """Refuse what is understood and not offered; ``request`` was made of ``body``."""
    for param in body.keys() & request.refused.keys():
        value = body[param]
        if value or (value == 0 and value is not False):
            raise unsupported(param, request.refused[param])
    if request.stream_options is not None and not request.stream:
        raise unsupported("stream_options", "it is only allowed together with stream=true")


def check_fanout(request: SamplingFields, num_prompts: int, max_fanout: int) -> None:
    """Refuse more answers than one request may ask for."""
    num_samples = request.num_samples
    if num_prompts * num_samples <= max_fanout:
        return
    asked = str(num_samples) if num_prompts == 1 else f"{num_samples} for each of {num_prompts}"
    raise invalid(
        "n" if num_samples == request.n else "best_of",
        f"at most {max_fanout} answers are allowed in one request, but it asks for {asked}",
    )
