"""HTTP by hand, for requests that no client library would send."""

import asyncio
import contextlib
import re
import socket
from collections.abc import Iterable

from tests.quickstart import MODEL


def request(
    body: bytes = b"",
    *headers: str,
    method: str = "POST",
    target: str = "/v1/completions",
    version: str = "HTTP/1.1",
    length: int | None = None,
) -> bytes:
    """``headers`` in place of all but ``content-length``, which tells the truth unless ``length``
    is given.
    """
    lines = [
        f"{method} {target} {version}",
        *(headers or ("host: gateway", "connection: close")),
        f"content-length: {len(body) if length is None else length}",
    ]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def completion(max_tokens: int = 2, rest: str = "") -> bytes:
    """A small body; ``rest`` are more fields, each after its comma."""
    fields = f'"model":"{MODEL}","prompt":"Hi","max_tokens":{max_tokens},"ignore_eos":true'
    return ("{" + fields + rest + "}").encode()


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int, receive_buffer_bytes: int | None = None) -> "RawClient":
        connection = socket.socket()
        if receive_buffer_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", port))
        limit = receive_buffer_bytes or 2**16
        return cls(*await asyncio.open_connection(sock=connection, limit=limit))

    async def send(self, *pieces: bytes, pause_s: float = 0.0) -> None:
        """Whatever of it the server still takes."""
        for piece in pieces:
            try:
                self._writer.write(piece)
                await self._writer.drain()
            except ConnectionError:
                return
            if pause_s:
                await asyncio.sleep(pause_s)

    def finish_sending(self) -> None:
        """Only this half of the connection is closed."""
        self._writer.write_eof()

    async def read(self, num_bytes: int) -> bytes:
        return await self._reader.readexactly(num_bytes)

    async def read_to_end(self, timeout_s: float = 10.0) -> bytes:
        """All that comes until the server closes the connection."""
        received = b""
        async with asyncio.timeout(timeout_s):
            try:
                while piece := await self._reader.read(2**16):
                    received += piece
            except ConnectionError:
                pass
        return received

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


async def exchange(port: int, pieces: Iterable[bytes], timeout_s: float = 10.0) -> bytes:
    """Send, read to the end, close."""
    client = await RawClient.connect(port)
    try:
        await client.send(*pieces)
        return await client.read_to_end(timeout_s)
    finally:
        await client.close()


def statuses(received: bytes) -> list[int]:
    """Of all responses in what came over one connection."""
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d{3}) ", received)]
