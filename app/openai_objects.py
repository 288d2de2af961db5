"""The JSON objects of OpenAI's API that this gateway answers with, as plain data."""

from typing import Any

from engine.messages import Usage


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
    *, completion_id: str, created_s: int, model: str, text: str, finish_reason: str, usage: Usage
) -> dict[str, Any]:
    return {
        "id": completion_id,
        "object": "chat.completion",
        "created": created_s,
        "model": model,
        "system_fingerprint": None,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": finish_reason,
            }
        ],
        "usage": usage_object(usage),
    }


def model_object(*, name: str, created_s: int, is_ready: bool) -> dict[str, Any]:
    """``status`` is ours: a configured model without a replica is listed as loading."""
    return {
        "id": name,
        "object": "model",
        "created": created_s,
        "owned_by": "headwater",
        "status": "ready" if is_ready else "loading",
    }
