"""Server-sent events of one streamed answer, as bytes: what all its events have in common.

Only ``data:`` lines and comments: some clients trip over ``id:`` and ``event:``.
"""

import orjson

from app.answers.openai_objects import AnswerHead, usage_object
from app.errors import ApiError
from engine.messages import Usage

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"


class EventFrame:
    """Everything but the choice is encoded once per answer."""

    def __init__(self, head: AnswerHead, object_name: str, *, includes_usage: bool) -> None:
        self._includes_usage = includes_usage
        self._answer_id = head.answer_id
        self._head = b"data: " + orjson.dumps(head.fields(object_name))[:-1]
        self._end = b',"usage":null}\n\n' if includes_usage else b"}\n\n"
        self.before_choice = self._head + b',"choices":['
        self.after_choice = b"]" + self._end
        """Of an event that carries no usage."""

    def event(self, choice: bytes, usage: Usage | None, extra: bytes = b"") -> bytes:
        """With one choice; ``extra`` are more fields, each after its comma."""
        if usage is None:
            return self.before_choice + choice + b"]" + extra + self._end
        return self.before_choice + choice + b"]" + extra + _usage_end(usage)

    def usage(self, usage: Usage) -> bytes:
        """Empty unless the client asked for it."""
        if not self._includes_usage:
            return b""
        return self._head + b',"choices":[]' + _usage_end(usage)

    def error(self, error: ApiError) -> bytes:
        return b"data: " + error.body(self._answer_id) + b"\n\n"


def _usage_end(usage: Usage) -> bytes:
    return b',"usage":' + orjson.dumps(usage_object(usage)) + b"}\n\n"
