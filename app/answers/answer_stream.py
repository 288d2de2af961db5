"""Writes one streamed answer: from the status, with the first token, to ``[DONE]``.

A piece of text becomes bytes when it comes, so that what waits for a slow client is known to the
byte. Knows ASGI's ``send`` only, and notes when it returned.
"""

from collections.abc import Callable
from typing import Protocol

from starlette.types import Send

from app.answers import sse
from app.answers.answer import Answer
from app.answers.generation import FinishedBy, Piece
from app.answers.write_times import WriteTimes
from app.errors import ApiError
from engine.messages import Usage


class EventFormat(Protocol):
    """The events of one kind of answer; each returns whole events, or none."""

    def begin(self, index: int, usage: Usage | None) -> bytes:
        """``usage``: so far, if every event carries it."""
        ...

    def add(self, index: int, piece: Piece, usage: Usage | None) -> bytes: ...

    def finish(self, index: int, reason: FinishedBy, rest: Piece, usage: Usage | None) -> bytes: ...

    def usage(self, usage: Usage) -> bytes:
        """The last event before the end of the stream."""
        ...

    def error(self, error: ApiError) -> bytes: ...


class AnswerStream:
    """Becomes the sink of ``answer``; what came while the client was not reading leaves in one
    piece.
    """

    def __init__(
        self,
        answer: Answer,
        events: EventFormat,
        send: Send,
        *,
        has_continuous_usage: bool,
        max_backlog_bytes: int,
        times: WriteTimes,
        cut: Callable[[], None],
    ) -> None:
        """``cut`` is called once the client let more than ``max_backlog_bytes`` pile up."""
        answer.sink = self
        self._answer = answer
        self._events = events
        self._send = send
        self._has_continuous_usage = has_continuous_usage
        self._max_backlog_bytes = max_backlog_bytes
        self._times = times
        self._cut = cut
        self._chunks: list[bytes] = []
        self._num_chunk_bytes = 0
        self._samples: set[int] = set()
        """Those that the chunks are of."""
        self._is_writing = False

    # As ``app.answers.answer.PieceSink``.

    def begin(self, index: int) -> None:
        self._append(index, self._events.begin(index, self._usage()))

    def add(self, index: int, piece: Piece) -> None:
        usage = self._usage() if self._has_continuous_usage else None
        self._append(index, self._events.add(index, piece, usage))

    def finish(self, index: int, reason: FinishedBy, rest: Piece) -> None:
        self._append(index, self._events.finish(index, reason, rest, self._usage()))

    def restart(self, index: int) -> None:
        pass  # nothing has begun

    async def run(self, keep_alive_s: float) -> None:
        """Precondition: the answer has begun."""
        await self._send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
        has_news = True
        while True:
            ending = self._ending()
            chunks, samples = self._take()
            body = b"".join(chunks) + ending
            if not has_news:
                body = sse.KEEP_ALIVE + body
            if body:
                await self._write(body, is_last=bool(ending))
                self._times.note(samples)
            if ending:
                return
            has_news = await self._answer.wait(keep_alive_s)

    def _ending(self) -> bytes:
        if self._answer.error is not None:
            return self._events.error(self._answer.error) + sse.DONE
        if self._answer.is_finished:
            return self._events.usage(self._answer.usage) + sse.DONE
        return b""

    def _take(self) -> tuple[list[bytes], set[int]]:
        taken = self._chunks, self._samples
        self._chunks, self._samples = [], set()
        self._num_chunk_bytes = 0
        return taken

    async def _write(self, body: bytes, *, is_last: bool) -> None:
        self._is_writing = True
        await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})
        self._is_writing = False

    def _append(self, index: int, chunk: bytes) -> None:
        if not chunk:
            return
        self._chunks.append(chunk)
        self._samples.add(index)
        self._num_chunk_bytes += len(chunk)
        if self._is_writing and self._num_chunk_bytes > self._max_backlog_bytes:
            self._cut()  # one big step alone is no sign of a client that does not read

    def _usage(self) -> Usage | None:
        return self._answer.usage if self._has_continuous_usage else None
