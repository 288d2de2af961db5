"""The events of a streamed chat completion: one ``chat.completion.chunk`` each.

Everything but the text is encoded once per answer, so that a token costs one ``orjson.dumps`` of a
short string.
"""

from typing import Any

import orjson

from app.answers.generation import FinishedBy, Piece
from app.answers.logprobs import LogprobFormat
from app.answers.openai_objects import AnswerHead
from app.answers.sse import EventFrame
from engine.messages import Usage


class ChatEvents(EventFrame):
    """Implements ``app.answers.answer_stream.EventFormat``."""

    def __init__(
        self,
        head: AnswerHead,
        *,
        num_choices: int,
        includes_usage: bool,
        logprobs: LogprobFormat | None = None,
        prompt_token_ids: list[int] | None = None,
    ) -> None:
        """``prompt_token_ids``: only if the client asked for token ids."""
        super().__init__(head, "chat.completion.chunk", includes_usage=includes_usage)
        self._logprobs = logprobs
        self._has_token_ids = prompt_token_ids is not None
        self._has_begun = False
        self._prompt_token_ids = prompt_token_ids
        self._before_text = [
            self.before_choice + b'{"index":%d,"delta":{"content":' % index
            for index in range(num_choices)
        ]
        self._after_text = b'},"finish_reason":null}' + self.after_choice
        self._is_plain = logprobs is None and prompt_token_ids is None

    def begin(self, index: int, usage: Usage | None) -> bytes:
        delta = {"role": "assistant", "content": "", "refusal": None}
        choice = {"index": index, "delta": delta, "finish_reason": None}
        extra = b""
        if self._has_token_ids and not self._has_begun:
            extra = b',"prompt_token_ids":' + orjson.dumps(self._prompt_token_ids)
        self._has_begun = True
        return self.event(orjson.dumps(choice), usage, extra)

    def add(self, index: int, piece: Piece, usage: Usage | None) -> bytes:
        if self._is_plain and usage is None:
            return self._before_text[index] + orjson.dumps(piece.text) + self._after_text
        choice = {"index": index, "delta": {"content": piece.text}, "finish_reason": None}
        return self.event(orjson.dumps(choice | self._extras(piece)), usage)

    def finish(self, index: int, reason: FinishedBy, rest: Piece, usage: Usage | None) -> bytes:
        choice = {"index": index, "delta": {}, "finish_reason": reason}
        return self.event(orjson.dumps(choice | self._extras(rest)), usage)

    def _extras(self, piece: Piece) -> dict[str, Any]:
        extras: dict[str, Any] = {}
        if self._logprobs is not None and piece.tokens:
            extras["logprobs"] = self._logprobs.chat(piece.tokens)
        if self._has_token_ids:
            extras["token_ids"] = piece.token_ids
        return extras
