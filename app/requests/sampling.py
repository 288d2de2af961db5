"""From what a client asked for to what the engine is told, and whether it can fit at all.

What a client leaves open is what the model's makers recommend, else off.
"""

import secrets
from collections.abc import Sequence
from typing import TypeVar

from app.errors import ContextLengthError
from app.requests.border import invalid
from app.requests.sampling_fields import SamplingFields
from engine.messages import ModelCard, SamplingParams

Value = TypeVar("Value")


def sampling_params(
    request: SamplingFields, num_prompt_tokens: int, card: ModelCard
) -> SamplingParams:
    """For one prompt of ``request``.

    Raises ``ContextLengthError`` when prompt and answer can never fit, ``InvalidRequestError`` for
    tokens that the model does not have.
    """
    defaults = card.sampling_defaults
    top_k = _first(request.top_k, defaults.top_k, 0)
    return SamplingParams(
        max_tokens=_max_tokens(request, num_prompt_tokens, card),
        temperature=_first(request.temperature, defaults.temperature, 1.0),
        top_p=_first(request.top_p, defaults.top_p, 1.0),
        seed=secrets.randbits(64) if request.seed is None else request.seed % 2**64,
        stop_token_ids=_stop_token_ids(request, card),
        top_k=top_k if 0 < top_k < card.vocab_size else 0,
        min_p=_first(request.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(request.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=_first(request.presence_penalty, None, 0.0),
        frequency_penalty=_first(request.frequency_penalty, None, 0.0),
        logit_bias=_logit_bias(request, card),
        min_tokens=request.min_tokens or 0,
        num_logprobs=_num_logprobs(request),
        num_prompt_logprobs=request.num_prompt_logprobs,
    )


def check_can_fit(request: SamplingFields, min_num_prompt_tokens: int, card: ModelCard) -> None:
    """Refuse a prompt that is too long by far, before seconds are spent on tokenizing it."""
    if min_num_prompt_tokens > card.max_request_tokens:
        param = request.prompt_param
        asked = f"at least {min_num_prompt_tokens} tokens in '{param}'"
        raise _too_long(card, f"{asked}: shorten it", param=param)


def check_token_ids(token_ids: Sequence[int], card: ModelCard, *, param: str) -> None:
    """Raises ``InvalidRequestError`` when one is not in the vocabulary."""
    largest = max(token_ids, default=0)
    if largest >= card.vocab_size:
        raise invalid(
            param, f"{largest} is not a token of this model, whose ids are below {card.vocab_size}"
        )


def _max_tokens(request: SamplingFields, num_prompt_tokens: int, card: ModelCard) -> int:
    if num_prompt_tokens < 1:
        raise invalid(request.prompt_param, "it must hold at least one token")
    num_free = card.max_request_tokens - num_prompt_tokens
    num_asked = request.num_max_tokens
    if num_free < (1 if num_asked is None else num_asked):
        raise _too_long_by(request, num_prompt_tokens, num_free, card)
    if num_asked is None:
        num_asked = min(num_free, request.default_max_tokens or num_free)
    if (request.min_tokens or 0) > num_asked:
        raise invalid("min_tokens", f"it must be at most 'max_tokens', here {num_asked}")
    return num_asked


def _too_long_by(
    request: SamplingFields, num_prompt_tokens: int, num_free: int, card: ModelCard
) -> ContextLengthError:
    param = request.prompt_param
    num_asked = request.num_max_tokens
    asked = "" if num_asked is None else f" and {num_asked} for the answer"
    advice = (
        f"ask for at most {num_free} with '{request.max_tokens_param}' or shorten it"
        if num_free > 0
        else "shorten it"
    )
    return _too_long(card, f"{num_prompt_tokens} tokens in '{param}'{asked}: {advice}", param=param)


def _too_long(card: ModelCard, requested: str, *, param: str) -> ContextLengthError:
    limit = card.max_request_tokens
    where = (
        ""
        if limit == card.max_model_len
        else f" here (the size of its KV cache; the model itself allows {card.max_model_len})"
    )
    return ContextLengthError(
        f"This model's maximum context length is {limit} tokens{where}. However, you requested "
        f"{requested}.",
        param=param,
    )


def _stop_token_ids(request: SamplingFields, card: ModelCard) -> tuple[int, ...]:
    asked = request.stop_token_ids or []
    check_token_ids(asked, card, param="stop_token_ids")
    own = [] if request.ignore_eos else card.eos_token_ids
    return tuple(dict.fromkeys([*own, *asked]))


def _logit_bias(request: SamplingFields, card: ModelCard) -> tuple[tuple[int, float], ...]:
    if not request.logit_bias:
        return ()
    biases = tuple((int(key), bias) for key, bias in request.logit_bias.items())
    check_token_ids([token_id for token_id, _ in biases], card, param="logit_bias")
    return biases


def _num_logprobs(request: SamplingFields) -> int | None:
    """Also without being asked where the likeliest samples are chosen by them."""
    is_ranked = request.num_samples > (request.n or 1)
    return 0 if request.num_logprobs is None and is_ranked else request.num_logprobs


def _first(asked: Value | None, recommended: Value | None, off: Value) -> Value:
    if asked is not None:
        return asked
    return off if recommended is None else recommended
