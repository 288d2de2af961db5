"""Log probabilities as the JSON objects of OpenAI's two APIs.

Each token's part is encoded at once: as Python objects, the alternatives of a long answer would
take gigabytes. Must not know requests.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from app.answers.token_trace import TracedToken
from app.text.token_text import TokenText
from engine.messages import TokenLogprobs

MIN_LOGPROB = -9999.0
"""JSON has no infinity."""


MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Of log probabilities that one answer may hold before it is sent."""

MAX_BYTES_ON_LOOP = 256 * 1024
"""Encoding more would hold up the event loop for over some 7 ms."""

_TOKEN_BYTES = 270
_ALTERNATIVE_BYTES = 70
"""Measured: a traced token, and two list items with an int and a float."""


class LogprobFormat:
    """For one answer; what it returns is for ``orjson``."""

    def __init__(self, token_text: Callable[[int], TokenText], num_top: int) -> None:
        """``num_top``: alternatives to show per token."""
        self._token_text = token_text
        self._num_top = num_top

    def chat(self, tokens: Sequence[TracedToken]) -> dict[str, Any]:
        """Of chat completions; the ``bytes``, joined, are the content."""
        return {"content": [_encoded(self._chat_token(token)) for token in tokens], "refusal": None}

    def text(self, tokens: Sequence[TracedToken], first_offset: int = 0) -> dict[str, Any]:
        """Of text completions; ``first_offset``: characters of the choice's text before it."""
        return {
            "tokens": [self._name(token.token_id) for token in tokens],
            "token_logprobs": [
                None if token.logprobs is None else _finite(token.logprobs.logprob)
                for token in tokens
            ],
            "top_logprobs": [_encoded(self._by_name(token)) for token in tokens],
            "text_offset": _text_offsets(tokens, first_offset),
        }

    def _chat_token(self, token: TracedToken) -> dict[str, Any]:
        logprobs = token.logprobs
        assert logprobs is not None, "a generated token has no log probability"
        return {
            "token": self._token_text(token.token_id).text,
            "logprob": _finite(logprobs.logprob),
            "bytes": list(token.bytes),
            "top_logprobs": [self._top(*item) for item in self._likeliest(logprobs)],
        }

    def _top(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._token_text(token_id)
        return {"token": text.text, "logprob": _finite(logprob), "bytes": list(text.bytes)}

    def _likeliest(self, logprobs: TokenLogprobs) -> list[tuple[int, float]]:
        pairs = zip(logprobs.top_ids, logprobs.top_logprobs, strict=True)
        return list(pairs)[: self._num_top]

    def _by_name(self, token: TracedToken) -> dict[str, float] | None:
        """The likeliest tokens, and the one that was chosen; of equal names the likelier."""
        if token.logprobs is None:
            return None
        found: dict[str, float] = {}
        for token_id, logprob in self._likeliest(token.logprobs):
            found.setdefault(self._name(token_id), _finite(logprob))
        found.setdefault(self._name(token.token_id), _finite(token.logprobs.logprob))
        return found

    def _name(self, token_id: int) -> str:
        """Unlike in chat completions there are no bytes beside it, so it spells them if need be."""
        text = self._token_text(token_id)
        try:
            bytes(text.bytes).decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in text.bytes)
        return text.text


def num_memory_bytes(num_tokens: int, num_alternatives: int) -> int:
    """What so many tokens take before they are encoded, and about what they take then."""
    return num_tokens * _TOKEN_BYTES + num_alternatives * _ALTERNATIVE_BYTES


def num_alternatives(tokens: Iterable[TracedToken]) -> int:
    return sum(len(token.logprobs.top_ids) for token in tokens if token.logprobs is not None)


def num_chars(utf8: bytes) -> int:
    """Characters that begin in ``utf8``."""
    return sum(byte & 0xC0 != 0x80 for byte in utf8)


def _text_offsets(tokens: Sequence[TracedToken], first_offset: int) -> list[int]:
    """Where the character stands that each token begins with, or goes on with."""
    offsets: list[int] = []
    offset = first_offset
    for token in tokens:
        is_within = bool(token.bytes) and token.bytes[0] & 0xC0 == 0x80
        offsets.append(offset - is_within)
        offset += num_chars(token.bytes)
    return offsets


def _encoded(value: Any) -> orjson.Fragment:
    return orjson.Fragment(orjson.dumps(value))


def _finite(logprob: float) -> float:
    return min(0.0, max(MIN_LOGPROB, logprob))
