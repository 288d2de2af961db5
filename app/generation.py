"""The answer to one request as it arrives: tokens to text, stop strings, the end.

Knows no HTTP and no engine. ``on_delta`` does the work when the tokens come, so that a stop string
ends the request within one step however slowly the client reads; a single reader takes the pieces.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from app.detokenizer import Detokenizer
from app.errors import ApiError, EngineError, RequestTimeoutError
from app.stop_strings import StopStrings
from engine.messages import FinishReason, TokenDelta, Usage

logger = logging.getLogger(__name__)


class Finish(NamedTuple):
    """How an answer ended well."""

    reason: Literal["stop", "length"]
    usage: Usage


class Generation:
    """State of one answer. Written by the dispatcher's deltas, read by one coroutine."""

    def __init__(
        self,
        *,
        num_prompt_tokens: int,
        detokenizer: Detokenizer,
        stops: Sequence[str],
        stop_token_ids: frozenset[int],
        deadline_s: float,
        abort: Callable[[int | None], None],
    ) -> None:
        """``abort`` ends the request at the engine; it is given the number of tokens to keep."""
        self.finish: Finish | None = None
        self.error: ApiError | None = None
        self.num_tokens = 0
        """Tokens received, those after a stop string included."""
        self.num_cached_tokens = 0
        self.num_pending_chars = 0
        """Text that was not taken yet."""
        self.on_growth: Callable[[], None] | None = None
        """Called after text was added; the reader may watch its backlog."""
        self._num_prompt_tokens = num_prompt_tokens
        self._detokenizer = detokenizer
        self._stops = StopStrings(stops) if stops else None
        self._stop_token_ids = stop_token_ids
        self._deadline_s = deadline_s
        self._abort = abort
        self._num_kept_tokens: int | None = None
        self._pieces: list[str] = []
        self._waiter: asyncio.Future[None] | None = None
        self._has_news = False

    # Written by the dispatcher.

    def on_delta(self, delta: TokenDelta) -> None:
        """Take in what one step added. Never raises: the connection carries other answers, too."""
        if self.error is not None:
            return
        try:
            self._take_in(delta)
        except Exception:
            logger.exception("request %s: its answer could not be decoded", delta.request_id)
            self.error = EngineError("The answer could not be decoded.")
            self._abort(None)
        self._wake()

    def _take_in(self, delta: TokenDelta) -> None:
        if delta.usage is not None:
            self.num_cached_tokens = delta.usage.cached_tokens
        if self._num_kept_tokens is None:
            self._add_text(delta)
        self.num_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            self._end(delta, delta.finish_reason)

    def fail(self, error: ApiError) -> None:
        """End without a last delta."""
        self.error = error
        self._wake()

    # Read by the request's coroutine.

    async def wait(self, timeout_s: float = math.inf) -> bool:
        """Until there is something new; False after ``timeout_s`` without.

        Past the deadline the answer has failed, which is news, too.
        """
        left_s = self._deadline_s - time.monotonic()
        if not self._has_news:
            await self._sleep(max(0.0, min(timeout_s, left_s)))
        if not self._has_news and left_s <= timeout_s:
            self.fail(RequestTimeoutError("The request took longer than the server allows."))
        has_news, self._has_news = self._has_news, False
        return has_news

    async def _sleep(self, timeout_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout_s, _resolve, self._waiter)
        try:
            await self._waiter
        finally:
            timer.cancel()
            self._waiter = None

    def take(self) -> list[str]:
        """The pieces of text since the last call, one per step that brought text."""
        pieces, self._pieces = self._pieces, []
        self.num_pending_chars = 0
        return pieces

    @property
    def num_pending_pieces(self) -> int:
        return len(self._pieces)

    @property
    def usage(self) -> Usage:
        """The engine's counts if it sent them, else what was received so far."""
        if self.finish is not None:
            return self.finish.usage
        return Usage(
            prompt_tokens=self._num_prompt_tokens,
            cached_tokens=self.num_cached_tokens,
            completion_tokens=self._num_kept_tokens or self.num_tokens,
        )

    def _add_text(self, delta: TokenDelta) -> None:
        token_ids = delta.token_ids
        is_stop = delta.finish_reason is FinishReason.STOP
        if is_stop and token_ids and token_ids[-1] in self._stop_token_ids:
            token_ids = token_ids[:-1]  # counted, never shown
        parts: list[str] = []
        for position, token_id in enumerate(token_ids):
            text = self._detokenizer.push(token_id)
            if self._stops is None or not text:
                parts.append(text)
                continue
            scanned = self._stops.push(text)
            parts.append(scanned.text)
            if scanned.is_stopped:
                self._num_kept_tokens = self.num_tokens + position + 1
                break
        if self._num_kept_tokens is None and delta.finish_reason is not None:
            parts.append(self._flush(self.num_tokens + len(delta.token_ids)))
        self._add_piece("".join(parts))
        if self._num_kept_tokens is not None and delta.finish_reason is None:
            self._abort(self._num_kept_tokens)

    def _flush(self, num_tokens: int) -> str:
        """What the end releases; a stop string in it keeps all ``num_tokens``."""
        rest = self._detokenizer.flush()
        if self._stops is None:
            return rest
        scanned = self._stops.push(rest)
        if scanned.is_stopped:
            self._num_kept_tokens = num_tokens
            return scanned.text
        return scanned.text + self._stops.flush()

    def _add_piece(self, text: str) -> None:
        if text:
            self._pieces.append(text)
            self.num_pending_chars += len(text)
            if self.on_growth is not None:
                self.on_growth()

    def _end(self, delta: TokenDelta, reason: FinishReason) -> None:
        usage = delta.usage or self.usage
        if self._num_kept_tokens is not None:
            # The text is complete, whatever became of the engine since.
            self.finish = Finish("stop", _cut(usage, self._num_kept_tokens))
        elif reason is FinishReason.STOP:
            self.finish = Finish("stop", usage)
        elif reason is FinishReason.LENGTH:
            self.finish = Finish("length", usage)
        elif reason is FinishReason.TIMEOUT:
            self.error = RequestTimeoutError("The request took longer than the server allows.")
        else:
            self.error = EngineError(delta.error or "The engine ended the request.")

    def _wake(self) -> None:
        self._has_news = True
        if self._waiter is not None:
            _resolve(self._waiter)


def _cut(usage: Usage, num_kept_tokens: int) -> Usage:
    """The engine may have ended the request before it heard of the stop string."""
    num_overrun = max(0, usage.completion_tokens - num_kept_tokens)
    return msgspec.structs.replace(
        usage,
        completion_tokens=usage.completion_tokens - num_overrun,
        overrun_tokens=usage.overrun_tokens + num_overrun,
    )


def _resolve(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)
