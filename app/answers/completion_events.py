"""The events of a streamed text completion: one ``text_completion`` each."""

from collections.abc import Sequence
from typing import Any

import orjson

from app.answers.generation import FinishedBy, Piece
from app.answers.logprobs import LogprobFormat
from app.answers.openai_objects import AnswerHead
from app.answers.sse import EventFrame
from engine.messages import Usage

_NOTHING = Piece("")


class CompletionEvents(EventFrame):
    """Implements ``app.answers.answer_stream.EventFormat``."""

    def __init__(
        self,
        head: AnswerHead,
        *,
        num_choices: int,
        includes_usage: bool,
        logprobs: LogprobFormat | None = None,
        prompt_token_ids: Sequence[list[int]] | None = None,
    ) -> None:
        """``prompt_token_ids``: of each choice, only if the client asked for token ids."""
        super().__init__(head, "text_completion", includes_usage=includes_usage)
        self._logprobs = logprobs
        self._prompt_token_ids = prompt_token_ids
        self._num_chars = [0] * num_choices
        """Of the text so far."""
        self._before_text = [
            self.before_choice + b'{"index":%d,"text":' % index for index in range(num_choices)
        ]
        self._after_text = b',"logprobs":null,"finish_reason":null}' + self.after_choice
        self._is_plain = logprobs is None and prompt_token_ids is None

    def begin(self, index: int, usage: Usage | None) -> bytes:
        if self._prompt_token_ids is None:
            return b""
        extras = {"prompt_token_ids": self._prompt_token_ids[index]}
        return self.event(self._choice(index, _NOTHING, None, extras), usage)

    def add(self, index: int, piece: Piece, usage: Usage | None) -> bytes:
        if self._is_plain and usage is None:
            return self._before_text[index] + orjson.dumps(piece.text) + self._after_text
        return self.event(self._choice(index, piece, None), usage)

    def finish(self, index: int, reason: FinishedBy, rest: Piece, usage: Usage | None) -> bytes:
        return self.event(self._choice(index, rest, reason), usage)

    def _choice(
        self,
        index: int,
        piece: Piece,
        reason: FinishedBy | None,
        extras: dict[str, Any] | None = None,
    ) -> bytes:
        choice: dict[str, Any] = {
            "index": index,
            "text": piece.text,
            "logprobs": None,
            "finish_reason": reason,
        }
        if self._logprobs is not None and piece.tokens:
            choice["logprobs"] = self._logprobs.text(piece.tokens, self._num_chars[index])
        if self._prompt_token_ids is not None:
            choice["token_ids"] = piece.token_ids
        self._num_chars[index] += len(piece.text)
        return orjson.dumps(choice | (extras or {}))
