"""Parses HTTP/1.1 responses from pieces of any size.

Bytes in, body bytes out: no sockets, no clock. Must not know what a body means.
"""

from __future__ import annotations

from enum import Enum, auto

MAX_HEAD_BYTES = 64 * 1024


class HttpError(Exception):
    """The exchange broke: the answer is not HTTP/1.1, or ended before it was whole."""


class _State(Enum):
    HEAD = auto()
    LENGTH_BODY = auto()
    CHUNK_SIZE = auto()
    CHUNK_DATA = auto()
    CHUNK_END = auto()
    TRAILERS = auto()
    BODY_UNTIL_CLOSE = auto()
    DONE = auto()


class ResponseParser:
    """Parses one response from pieces of any size; it does no I/O.

    `feed` returns the body bytes a piece completed, without their framing.
    """

    def __init__(self) -> None:
        self.status = 0  # 0 until the head is whole
        self.headers: dict[str, str] = {}  # names in lower case
        self.keep_alive = False
        self._state = _State.HEAD
        self._buffer = bytearray()
        self._num_left_bytes = 0  # of the body, or of the current chunk

    @property
    def is_done(self) -> bool:
        return self._state is _State.DONE

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; raises HttpError if they cannot belong to a response."""
        self._buffer += data
        body = bytearray()
        while self._advance(body):
            pass
        if self.is_done and self._buffer:
            raise HttpError("the server sent bytes after the end of its response")
        return bytes(body)

    def feed_eof(self) -> None:
        """The connection was closed; raises HttpError if the response was not whole."""
        if self._state is _State.BODY_UNTIL_CLOSE:
            self._state = _State.DONE
        if not self.is_done:
            raise HttpError("the server closed the connection before the end of its response")

    def _advance(self, body: bytearray) -> bool:
        """Go one state further; False when that takes more bytes."""
        match self._state:
            case _State.HEAD:
                return self._read_head()
            case _State.LENGTH_BODY:
                return self._read_counted(body, _State.DONE)
            case _State.CHUNK_DATA:
                return self._read_counted(body, _State.CHUNK_END)
            case _State.CHUNK_SIZE | _State.CHUNK_END | _State.TRAILERS:
                line = self._take_line()
                return line is not None and self._read_framing_line(line)
            case _State.BODY_UNTIL_CLOSE:
                body += self._buffer
                self._buffer.clear()
                return False
            case _State.DONE:
                return False

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise HttpError("the head of the response is too large")
            return False
        lines = self._buffer[:end].decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        version, _, rest = lines[0].partition(" ")
        code = rest[:3]
        if not version.startswith("HTTP/1.") or not (code.isascii() and code.isdigit()):
            raise HttpError(f"not an HTTP/1.1 response: {lines[0][:80]!r}")
        status = int(code)
        if 100 <= status < 200:
            return True  # an interim response: the real head follows
        self.status = status
        for line in lines[1:]:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._choose_framing(version)
        return True

    def _choose_framing(self, version: str) -> None:
        connection = self.headers.get("connection", "").lower()
        self.keep_alive = version == "HTTP/1.1" and "close" not in connection
        length = self.headers.get("content-length")
        if self.status in (204, 304):
            self._state = _State.DONE
        elif "chunked" in self.headers.get("transfer-encoding", "").lower():
            self._state = _State.CHUNK_SIZE
        elif length is not None:
            if not (length.isascii() and length.isdigit()):
                raise HttpError(f"bad Content-Length: {length[:80]!r}")
            self._num_left_bytes = int(length)
            self._state = _State.LENGTH_BODY if self._num_left_bytes else _State.DONE
        else:
            self._state = _State.BODY_UNTIL_CLOSE
            self.keep_alive = False

    def _read_counted(self, body: bytearray, following: _State) -> bool:
        piece = self._buffer[: self._num_left_bytes]
        body += piece
        del self._buffer[: len(piece)]
        self._num_left_bytes -= len(piece)
        if self._num_left_bytes:
            return False
        self._state = following
        return True

    def _take_line(self) -> bytes | None:
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise HttpError("a line of the chunked body is too long")
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return line

    def _read_framing_line(self, line: bytes) -> bool:
        if self._state is _State.CHUNK_SIZE:
            try:
                self._num_left_bytes = int(line.partition(b";")[0], 16)
            except ValueError:
                raise HttpError(f"bad chunk size: {line[:80]!r}") from None
            if self._num_left_bytes < 0:
                raise HttpError(f"bad chunk size: {line[:80]!r}")
            self._state = _State.CHUNK_DATA if self._num_left_bytes else _State.TRAILERS
        elif self._state is _State.CHUNK_END:
            if line:
                raise HttpError("a chunk is longer than its size")
            self._state = _State.CHUNK_SIZE
        elif not line:
            self._state = _State.DONE
        return True
