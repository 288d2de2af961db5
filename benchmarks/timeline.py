"""When what arrived: the times of one streamed request, and the latencies derived from them.

Turns stamped body bytes of a chat completion stream into a `RequestRecord`. Times are
`time.perf_counter()` seconds handed in; it reads no clock and opens no socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import orjson

MAX_ERROR_CHARS = 200
_MAX_HEAD_BYTES = 2048


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One finished request. Latencies count from `intended_s`, when it should have been sent.

    Counting from the real send would hide every wait a slow server causes in the client
    (coordinated omission).
    """

    intended_s: float
    sent_s: float
    end_s: float  # the last byte of the answer, or the failure
    content_s: tuple[float, ...]  # arrival of each chunk that carried text
    status: int  # of HTTP; 0 if no answer came
    completion_tokens: int  # as the server's usage chunk says; 0 when it failed
    error: str | None
    prompt_tokens: int = 0  # as the usage chunk says
    cached_tokens: int = 0  # of the prompt, where the server says so

    @property
    def ttft_s(self) -> float | None:
        """Time to the first chunk with text; None if there was none."""
        return self.content_s[0] - self.intended_s if self.content_s else None

    @property
    def e2e_s(self) -> float:
        return self.end_s - self.intended_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first: (e2e - ttft) / (completion_tokens - 1)."""
        if not self.content_s or self.completion_tokens < 2:
            return None
        return (self.end_s - self.content_s[0]) / (self.completion_tokens - 1)

    @property
    def gaps_s(self) -> list[float]:
        """Every time between two successive chunks with text."""
        return [after - before for before, after in pairwise(self.content_s)]

    @property
    def send_lag_s(self) -> float:
        """How late the client itself was."""
        return self.sent_s - self.intended_s


class SseDecoder:
    """Cuts a byte stream into the payloads of its `data:` lines.

    Every line is a payload of its own, as OpenAI-compatible servers send them; comments and
    other fields are skipped.
    """

    def __init__(self) -> None:
        self._partial_line = b""

    def feed(self, data: bytes) -> list[bytes]:
        lines = (self._partial_line + data).split(b"\n")
        self._partial_line = lines.pop()
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class StreamRecorder:
    """Owns the times of one request while it runs. `on_body` is the sink of the HTTP client."""

    def __init__(self, intended_s: float) -> None:
        self._intended_s = intended_s
        self._decoder = SseDecoder()
        self._content_s: list[float] = []
        self._done_s: float | None = None
        self._completion_tokens: int | None = None
        self._prompt_tokens = self._cached_tokens = 0
        self._error: str | None = None
        self._head = b""  # of a body that isn't a stream: an error's text

    def on_body(self, now_s: float, data: bytes) -> None:
        """Take the next body bytes, which arrived at `now_s`."""
        if not self._content_s and len(self._head) < _MAX_HEAD_BYTES:
            self._head += data
        for payload in self._decoder.feed(data):
            if payload == b"[DONE]":
                self._done_s = now_s
            elif payload:
                self._on_chunk(now_s, payload)

    def _on_chunk(self, now_s: float, payload: bytes) -> None:
        # orjson takes about 1 µs per chunk, a tenth of what receiving it costs; searching the
        # bytes instead would depend on how each server spaces its JSON.
        try:
            chunk = orjson.loads(payload)
            if chunk.get("error"):
                self._error = _error_text(payload)
                return
            for choice in chunk.get("choices") or ():
                if (choice.get("delta") or {}).get("content"):
                    self._content_s.append(now_s)
                    break
            usage = chunk.get("usage")
            if usage:
                self._completion_tokens = int(usage["completion_tokens"])
                self._prompt_tokens = int(usage.get("prompt_tokens") or 0)
                details = usage.get("prompt_tokens_details") or {}
                self._cached_tokens = int(details.get("cached_tokens") or 0)
        except (ValueError, TypeError, KeyError, AttributeError):
            self._error = f"not a chat completion chunk: {_shorten(payload)}"

    def finish(self, *, sent_s: float, end_s: float, status: int) -> RequestRecord:
        """The answer is whole; decide whether it was a good one."""
        error = self._error
        if status != 200:
            error = f"HTTP {status}: {_error_text(self._head)}"
        elif error is None and self._done_s is None:
            error = "the stream ended without [DONE]"
        elif error is None and self._completion_tokens is None:
            error = "no usage chunk: the server ignores stream_options.include_usage"
        elif error is None and not self._content_s:
            error = "the stream carried no text"
        end_s = self._done_s if error is None and self._done_s is not None else end_s
        return self._record(sent_s, end_s, status, error)

    def fail(self, *, sent_s: float, end_s: float, error: str) -> RequestRecord:
        """The exchange broke before the answer was whole."""
        return self._record(sent_s, end_s, 0, error[:MAX_ERROR_CHARS])

    def _record(self, sent_s: float, end_s: float, status: int, error: str | None) -> RequestRecord:
        return RequestRecord(
            intended_s=self._intended_s,
            sent_s=sent_s,
            end_s=end_s,
            content_s=tuple(self._content_s),
            status=status,
            completion_tokens=(self._completion_tokens or 0) if error is None else 0,
            error=error,
            prompt_tokens=self._prompt_tokens if error is None else 0,
            cached_tokens=self._cached_tokens if error is None else 0,
        )


def _error_text(body: bytes) -> str:
    """The message of an OpenAI-style error body, else the beginning of the body."""
    try:
        error = orjson.loads(body)["error"]
        message = error["message"] if isinstance(error, dict) else error
    except (ValueError, TypeError, KeyError):
        return _shorten(body)
    return str(message)[:MAX_ERROR_CHARS]


def _shorten(body: bytes) -> str:
    text = " ".join(body.decode("utf-8", "replace").split())
    return text[:MAX_ERROR_CHARS] or "(empty body)"
