"""Writes one streamed answer: from the status, with the first token, to ``[DONE]``.

Everything that could refuse the request happened before. Knows ASGI's ``send`` only.
"""

from collections.abc import Callable

from starlette.types import Send

from app import sse
from app.generation import Generation


class ChatStream:
    """Events of one answer; what came while the client was not reading leaves in one piece."""

    def __init__(
        self,
        generation: Generation,
        events: sse.ChatEvents,
        send: Send,
        *,
        max_backlog_bytes: int,
        cut: Callable[[], None],
    ) -> None:
        """``cut`` is called once the client let more than ``max_backlog_bytes`` pile up."""
        self._generation = generation
        self._events = events
        self._send = send
        self._max_backlog_bytes = max_backlog_bytes
        self._cut = cut

    async def run(self, keep_alive_s: float) -> None:
        """Precondition: the first token came."""
        self._generation.on_growth = self._check_backlog
        await self._send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
        events = [self._events.role()]
        while True:
            events += map(self._events.text, self._generation.take())
            ending = self._ending()
            await self._write(b"".join(events + ending), is_last=bool(ending))
            if ending:
                return
            has_news = await self._generation.wait(keep_alive_s)
            events = [] if has_news else [sse.KEEP_ALIVE]

    async def _write(self, body: bytes, *, is_last: bool) -> None:
        if body:
            await self._send({"type": "http.response.body", "body": body, "more_body": not is_last})

    def _ending(self) -> list[bytes]:
        finish, error = self._generation.finish, self._generation.error
        if error is not None:
            return [self._events.error(error), sse.DONE]
        if finish is None:
            return []
        return [self._events.finish(finish.reason), self._events.usage(finish.usage), sse.DONE]

    def _check_backlog(self) -> None:
        generation = self._generation
        overhead_bytes = generation.num_pending_pieces * self._events.event_overhead_bytes
        if generation.num_pending_chars + overhead_bytes > self._max_backlog_bytes:
            self._cut()
