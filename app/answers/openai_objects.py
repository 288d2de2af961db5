"""The JSON objects of OpenAI's API that this gateway answers with, as plain data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from app.answers.logprobs import LogprobFormat
from app.answers.whole_answer import Choice
from engine.messages import ModelCard, Usage


@dataclass(frozen=True, slots=True)
class AnswerHead:
    """What all parts of one answer say."""

    answer_id: str
    created_s: int
    model: str
    service_tier: str | None = None
    """The one that was used, if the client asked for any."""

    def fields(self, object_name: str) -> dict[str, Any]:
        fields = {
            "id": self.answer_id,
            "object": object_name,
            "created": self.created_s,
            "model": self.model,
            "system_fingerprint": None,
        }
        return fields if self.service_tier is None else fields | {"service_tier": self.service_tier}


def usage_object(usage: Usage) -> dict[str, Any]:
    """``prompt_tokens`` is the total, ``cached_tokens`` a part of it."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }


def chat_completion_object(
    head: AnswerHead,
    choices: Sequence[Choice],
    usage: Usage,
    *,
    logprobs: LogprobFormat | None,
    prompt_token_ids: list[int] | None,
) -> dict[str, Any]:
    """``prompt_token_ids``: only if the client asked for token ids."""
    whole = head.fields("chat.completion")
    whole["choices"] = [
        {
            "index": choice.index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": None if logprobs is None else logprobs.chat(choice.tokens),
            "finish_reason": choice.finish_reason,
        }
        | ({} if prompt_token_ids is None else {"token_ids": choice.token_ids})
        for choice in choices
    ]
    whole["usage"] = usage_object(usage)
    if prompt_token_ids is not None:
        whole["prompt_token_ids"] = prompt_token_ids
    return whole


def completion_object(
    head: AnswerHead,
    choices: Sequence[Choice],
    usage: Usage,
    *,
    logprobs: LogprobFormat | None,
    prompt_token_ids: Sequence[list[int]] | None,
) -> dict[str, Any]:
    """``prompt_token_ids``: of each choice, only if the client asked for token ids."""
    whole = head.fields("text_completion")
    whole["choices"] = [
        {
            "index": choice.index,
            "text": choice.text,
            "logprobs": None if logprobs is None else logprobs.text(choice.tokens),
            "finish_reason": choice.finish_reason,
        }
        | (
            {}
            if prompt_token_ids is None
            else {
                "prompt_token_ids": prompt_token_ids[choice.index],
                "token_ids": choice.token_ids,
            }
        )
        for choice in choices
    ]
    whole["usage"] = usage_object(usage)
    return whole


def model_object(*, name: str, card: ModelCard | None) -> dict[str, Any]:
    """``card``: of a replica that is ready. ``status`` is ours: a configured model without one is
    listed as loading. ``max_model_len`` is what requests are held to.
    """
    return {
        "id": name,
        "object": "model",
        "created": 0 if card is None else card.created_s,
        "owned_by": "headwater",
        "status": "loading" if card is None else "ready",
        "max_model_len": None if card is None else card.max_request_tokens,
    }
