"""Server-sent events of one streamed chat completion, as bytes.

Everything but the text is encoded once per answer, so that a token costs one ``orjson.dumps`` of a
short string. Only ``data:`` lines and comments: some clients trip over ``id:`` and ``event:``.
"""

from typing import Any

import orjson

from app.errors import ApiError
from app.openai_objects import usage_object
from engine.messages import Usage

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

_CONTENT = b'{"content":'


class ChatEvents:
    """The events of one answer; all carry the same id, time and model."""

    def __init__(
        self, *, completion_id: str, created_s: int, model: str, includes_usage: bool
    ) -> None:
        self._includes_usage = includes_usage
        self._completion_id = completion_id
        head = {
            "id": completion_id,
            "object": "chat.completion.chunk",
            "created": created_s,
            "model": model,
            "system_fingerprint": None,
        }
        self._head = b"data: " + orjson.dumps(head)[:-1]
        self._tail = b',"usage":null}\n\n' if includes_usage else b"}\n\n"
        self._before_delta = self._head + b',"choices":[{"index":0,"delta":'
        self._before_text = self._before_delta + _CONTENT
        self._after_text = b'},"finish_reason":null}]' + self._tail

    @property
    def event_overhead_bytes(self) -> int:
        """Size of a text event without its text."""
        return len(self._before_text) + len(self._after_text)

    def role(self) -> bytes:
        delta = orjson.dumps({"role": "assistant", "content": "", "refusal": None})
        return self._before_delta + delta + b',"finish_reason":null}]' + self._tail

    def text(self, text: str) -> bytes:
        return self._before_text + orjson.dumps(text) + self._after_text

    def finish(self, reason: str) -> bytes:
        ending = b'{},"finish_reason":' + orjson.dumps(reason) + b"}]"
        return self._before_delta + ending + self._tail

    def usage(self, usage: Usage) -> bytes:
        """Empty unless the client asked for it."""
        if not self._includes_usage:
            return b""
        body: dict[str, Any] = usage_object(usage)
        return self._head + b',"choices":[],"usage":' + orjson.dumps(body) + b"}\n\n"

    def error(self, error: ApiError) -> bytes:
        return b"data: " + error.body(self._completion_id) + b"\n\n"
