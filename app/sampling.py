"""From what a client asked for to what the engine is told, and whether it can fit at all."""

import secrets

from app.chat_request import ChatRequest
from app.errors import ContextLengthError
from engine.messages import ModelCard, SamplingParams


def sampling_params(
    request: ChatRequest, num_prompt_tokens: int, card: ModelCard
) -> SamplingParams:
    """Raises ``ContextLengthError`` when prompt and answer can never fit."""
    num_free = _max_request_tokens(card) - num_prompt_tokens
    num_asked = request.num_max_tokens
    if num_free < (num_asked or 1):
        asked = "" if num_asked is None else f" and {num_asked} for the answer"
        advice = (
            f"ask for at most {num_free} with '{request.max_tokens_param}' or shorten the messages"
            if num_free > 0
            else "shorten the messages"
        )
        raise _too_long(card, f"{num_prompt_tokens} tokens in the messages{asked}: {advice}")
    return SamplingParams(
        max_tokens=num_free if num_asked is None else num_asked,
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        seed=secrets.randbits(64) if request.seed is None else request.seed % 2**64,
        stop_token_ids=() if request.ignore_eos else tuple(card.eos_token_ids),
    )


def check_can_fit(min_num_prompt_tokens: int, card: ModelCard) -> None:
    """Refuse a prompt that is too long by far, before seconds are spent on tokenizing it."""
    if min_num_prompt_tokens >= _max_request_tokens(card):
        raise _too_long(
            card, f"at least {min_num_prompt_tokens} tokens in the messages: shorten the messages"
        )


def _max_request_tokens(card: ModelCard) -> int:
    return min(card.max_model_len, card.num_blocks * card.block_size_tokens)


def _too_long(card: ModelCard, requested: str) -> ContextLengthError:
    limit = _max_request_tokens(card)
    where = (
        ""
        if limit == card.max_model_len
        else f" here (the size of its KV cache; the model itself allows {card.max_model_len})"
    )
    return ContextLengthError(
        f"This model's maximum context length is {limit} tokens{where}. However, you requested "
        f"{requested}.",
        param="messages",
    )
