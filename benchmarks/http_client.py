"""A lean HTTP/1.1 client for measuring: POST, keep-alive, body bytes stamped as they arrive.

It runs on the same cores as the server it measures, so it does nothing a general client does
beyond the protocol: no redirects, no compression, no TLS. Must not know what a body means.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from benchmarks.http_response import HttpError, ResponseParser

# Servers close idle connections (uvicorn after 5 s). A request sent at that very moment fails
# through no fault of the server, so connections are given up well before.
MAX_IDLE_S = 2.0

BodySink = Callable[[float, bytes], None]  # (time.perf_counter() of arrival, body bytes)


class _Connection(asyncio.Protocol):
    """One TCP connection; carries one exchange at a time."""

    def __init__(self) -> None:
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None  # set during an exchange
        self._sink: BodySink | None = None
        self._finished: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now_s = time.perf_counter()
        if self._parser is None or self._sink is None:
            self.abort()  # bytes nobody asked for: what follows cannot be trusted
            return
        try:
            body = self._parser.feed(data)
            if body:
                self._sink(now_s, body)
        except Exception as error:
            self._finish(error)
            self.abort()
            return
        if self._parser.is_done:
            self._finish(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._parser is None:
            return
        if exc is not None:
            self._finish(HttpError(f"the connection broke: {exc}"))
            return
        try:
            self._parser.feed_eof()
        except HttpError as error:
            self._finish(error)
        else:
            self._finish(None)

    async def exchange(self, request: bytes, sink: BodySink) -> ResponseParser:
        """Send a request and give every piece of the answer's body to `sink` as it arrives."""
        assert self._transport is not None
        assert self._parser is None, "one exchange at a time"
        parser = ResponseParser()
        self._parser = parser
        self._sink = sink
        self._finished = asyncio.get_running_loop().create_future()
        try:
            self._transport.write(request)
            await self._finished
        finally:
            self._parser = self._sink = self._finished = None
        return parser

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _finish(self, error: Exception | None) -> None:
        if self._finished is None or self._finished.done():
            return
        if error is None:
            self._finished.set_result(None)
        else:
            self._finished.set_exception(error)


class HttpClient:
    """POSTs to one server over as many kept-alive connections as requests are in flight."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port
        self._authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._idle: list[_Connection] = []

    async def post(self, path: str, headers: dict[str, str], body: bytes, sink: BodySink) -> int:
        """POST `body`; `sink` sees the answer's body as it arrives. Returns the status.

        Raises OSError if the server cannot be reached, HttpError if the exchange broke. When
        cancelled the connection is closed, which tells the server to stop.
        """
        head = [f"POST {path} HTTP/1.1", f"Host: {self._authority}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        head += [f"Content-Length: {len(body)}", "", ""]
        connection = self._take_idle() or await self._connect()
        try:
            response = await connection.exchange("\r\n".join(head).encode("latin-1") + body, sink)
        except BaseException:
            connection.abort()
            raise
        if response.keep_alive and connection.is_open:
            connection.idle_since_s = time.perf_counter()
            self._idle.append(connection)
        else:
            connection.abort()
        return response.status

    async def check_reachable(self) -> None:
        """Connect once, and keep the connection for the first request; raises OSError."""
        connection = await self._connect()
        connection.idle_since_s = time.perf_counter()
        self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections."""
        for connection in self._idle:
            connection.abort()
        self._idle.clear()

    def _take_idle(self) -> _Connection | None:
        oldest_s = time.perf_counter() - MAX_IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.idle_since_s >= oldest_s:
                return connection
            connection.abort()
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, self._host, self._port)
        return connection
