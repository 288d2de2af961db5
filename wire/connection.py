"""One connection between two of our processes, on asyncio: frames, heartbeats, bounded queues.

Sending never waits: it is the peer's problem to keep up, and a peer that does not is cut off. Must
not know what is sent. Lives on one event loop and is not thread-safe.
"""

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import cast

from wire.endpoint import Endpoint
from wire.errors import ConnectionClosed, HandshakeError, WireError
from wire.frames import HEARTBEAT, FrameDecoder, encode_frame
from wire.handshake import MAX_HANDSHAKE_FRAME_BYTES, Handshake, Role, refusal
from wire.limits import Limits

logger = logging.getLogger(__name__)


class Connection(asyncio.Protocol):
    """Frames to and from one peer. Made by ``connect``, ``adopt`` or a listener."""

    def __init__(
        self,
        limits: Limits,
        handshake: Handshake | None,
        on_open: Callable[["Connection"], None] | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[None] = loop.create_future()
        """Done once the handshake is; ``WireError`` if it failed."""
        self._loop = loop
        self._limits = limits
        self._handshake = handshake
        self._on_open = on_open
        self._transport: asyncio.Transport | None = None
        self._decoder = FrameDecoder(
            MAX_HANDSHAKE_FRAME_BYTES if handshake else limits.max_frame_bytes
        )
        self._outgoing: list[bytes] = []
        self._num_outgoing_bytes = 0
        self._is_flush_scheduled = False
        self._incoming: deque[bytes] = deque()
        self._num_incoming_bytes = 0
        self._receiver: asyncio.Future[None] | None = None
        self._is_reading_paused = False
        self._has_sent = False
        self._num_silent_ticks = 0
        self._last_received_s = loop.time()
        self._closed: asyncio.Future[None] = loop.create_future()
        self._close_reason: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    # What the application calls

    @property
    def queued_bytes(self) -> int:
        """Bytes sent that have not left for the kernel yet."""
        transport = self._transport
        in_transport = transport.get_write_buffer_size() if transport is not None else 0
        return self._num_outgoing_bytes + in_transport

    @property
    def close_reason(self) -> str | None:
        """Why the connection is closed; ``None`` while it is open."""
        return self._close_reason

    @property
    def silence_s(self) -> float:
        """Time since anything came from the peer, heartbeats included."""
        return self._loop.time() - self._last_received_s

    def send(self, payload: bytes) -> None:
        """Queue one frame: the first of an event loop turn leaves at once, the others together.

        Never blocks. On a closed connection it does nothing: ``receive`` is what tells.
        Raises ``FrameTooLargeError``.
        """
        if not payload:
            raise ValueError("an empty frame is a heartbeat; send at least one byte")
        frame = encode_frame(payload, self._limits.max_frame_bytes)
        if self._close_reason is not None:
            return
        if self.queued_bytes + len(frame) > self._limits.max_send_queue_bytes:
            self._abort(
                f"the peer does not keep up: {self.queued_bytes} bytes wait to be sent, "
                f"the limit is {self._limits.max_send_queue_bytes}"
            )
            return
        if self._is_flush_scheduled:
            self._outgoing.append(frame)
            self._num_outgoing_bytes += len(frame)
            return
        assert self._transport is not None
        self._transport.write(frame)
        self._has_sent = True
        self._is_flush_scheduled = True
        self._loop.call_soon(self._flush)

    async def receive(self) -> bytes:
        """The next frame. Raises ``ConnectionClosed`` after the last one. One caller at a time."""
        while not self._incoming:
            if self._close_reason is not None:
                raise ConnectionClosed(self._close_reason)
            assert self._receiver is None, "two tasks receive from one connection"
            self._receiver = self._loop.create_future()
            try:
                await self._receiver
            finally:
                self._receiver = None
        payload = self._incoming.popleft()
        self._num_incoming_bytes -= len(payload)
        if self._is_reading_paused and (
            self._num_incoming_bytes <= self._limits.max_receive_queue_bytes // 2
        ):
            self._is_reading_paused = False
            if self._transport is not None:
                self._transport.resume_reading()
        return payload

    def close(self, reason: str) -> None:
        """Close once what was sent has left, or after ``flush_timeout_s``. Once is enough."""
        if self._close_reason is not None:
            return
        self._flush()
        self._end(reason)
        if self._transport is not None:
            self._transport.close()
            self._timer = self._loop.call_later(self._limits.flush_timeout_s, self._transport.abort)

    async def wait_closed(self) -> None:
        """Return when the socket is closed."""
        await asyncio.shield(self._closed)

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not an assert: uvloop's transports have the methods, but not the class.
        transport = cast(asyncio.Transport, transport)
        self._transport = transport
        if self._close_reason is not None:  # the listener closed between accept and this call
            transport.abort()
            return
        if self._handshake is None:
            self._open()
            return
        self._timer = self._loop.call_later(
            self._limits.handshake_timeout_s,
            self._abort,
            f"no handshake within {self._limits.handshake_timeout_s:g} s",
        )
        transport.write(encode_frame(self._handshake.hello()))

    def data_received(self, data: bytes) -> None:
        if self._close_reason is not None:
            return
        self._last_received_s = self._loop.time()
        self._num_silent_ticks = 0
        decoder = self._decoder
        decoder.feed(data)
        try:
            if self._handshake is not None and not self._continue_handshake(self._handshake):
                return
            payloads = decoder.frames()
        except WireError as error:
            self._abort(str(error))
            return
        if payloads:
            self._take(payloads)

    def eof_received(self) -> bool:
        return False  # the transport closes itself: half-open connections have no use here

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("the peer closed the connection" if exc is None else f"connection lost: {exc}")
        if self._timer is not None:
            self._timer.cancel()
        if not self._closed.done():
            self._closed.set_result(None)

    # Inside

    def _continue_handshake(self, handshake: Handshake) -> bool:
        """Whether the handshake is done; frames behind its last one stay in the decoder."""
        assert self._transport is not None
        while not handshake.is_done:
            frame = self._decoder.next_frame()
            if frame is None:
                return False
            try:
                answer = handshake.receive(frame)
            except HandshakeError as error:
                self._transport.write(encode_frame(refusal(error)))
                self.close(str(error))
                return False
            if answer is not None:
                self._transport.write(encode_frame(answer))
        self._handshake = None
        self._decoder.max_frame_bytes = self._limits.max_frame_bytes
        self._open()
        return True

    def _open(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._schedule_tick()
        self.opened.set_result(None)
        if self._on_open is not None:
            self._on_open(self)

    def _take(self, payloads: list[bytes]) -> None:
        self._incoming.extend(payloads)
        self._num_incoming_bytes += sum(map(len, payloads))
        if self._num_incoming_bytes > self._limits.max_receive_queue_bytes:
            assert self._transport is not None
            self._is_reading_paused = True
            self._transport.pause_reading()
        self._wake_receiver()

    def _wake_receiver(self) -> None:
        if self._receiver is not None and not self._receiver.done():
            self._receiver.set_result(None)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if not self._outgoing or self._close_reason is not None:
            return
        assert self._transport is not None
        outgoing = self._outgoing
        self._transport.write(outgoing[0] if len(outgoing) == 1 else b"".join(outgoing))
        outgoing.clear()
        self._num_outgoing_bytes = 0
        self._has_sent = True

    def _schedule_tick(self) -> None:
        if self._limits.heartbeat_period_s is not None:
            self._timer = self._loop.call_later(self._limits.heartbeat_period_s, self._tick)

    def _tick(self) -> None:
        """Send a heartbeat if nothing else was sent; notice a silent peer.

        Silence is counted in ticks, not on the clock: when this event loop itself was stalled, what
        the peer sent meanwhile still lies in the socket, and that is not the peer's fault.
        """
        assert self._transport is not None
        assert self._limits.heartbeat_period_s is not None
        if not self._has_sent and self.queued_bytes == 0:
            self._transport.write(HEARTBEAT)
        self._has_sent = False
        if not self._is_reading_paused:
            self._num_silent_ticks += 1
        silence_s = self._num_silent_ticks * self._limits.heartbeat_period_s
        if silence_s >= self._limits.heartbeat_timeout_s:
            self._abort(f"nothing came from the peer for {self._limits.heartbeat_timeout_s:g} s")
            return
        self._schedule_tick()

    def _abort(self, reason: str) -> None:
        """Close at once; what is queued is lost."""
        self._end(reason)
        if self._transport is not None:
            self._transport.abort()

    def _end(self, reason: str) -> None:
        if self._close_reason is not None:
            return
        self._close_reason = reason
        self._outgoing.clear()
        self._num_outgoing_bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.opened.done():
            self.opened.set_exception(WireError(reason))
            self.opened.exception()  # marks it as seen: nobody waits for an incoming connection
        self._wake_receiver()


async def connect(endpoint: Endpoint, *, secret: bytes, limits: Limits | None = None) -> Connection:
    """Dial ``endpoint`` and shake hands; over its Unix socket when that exists here.

    Raises ``WireError`` with the endpoint and what failed.
    """
    limits = limits or Limits()
    loop = asyncio.get_running_loop()

    def make() -> Connection:
        return Connection(limits, Handshake(Role.CLIENT, secret))

    connection: Connection | None = None
    if endpoint.unix_path is not None and Path(endpoint.unix_path).is_socket():  # noqa: ASYNC240
        try:
            _, connection = await loop.create_unix_connection(make, endpoint.unix_path)
        except OSError as error:  # left behind by a process that is gone, or not ours to open
            logger.debug("unix socket %s: %s; using TCP", endpoint.unix_path, error)
    try:
        if connection is None:
            async with asyncio.timeout(limits.handshake_timeout_s):
                _, connection = await loop.create_connection(make, endpoint.host, endpoint.port)
        await asyncio.shield(connection.opened)
    except (OSError, TimeoutError, WireError) as error:
        raise WireError(f"cannot connect to {endpoint}: {str(error) or 'timed out'}") from error
    except asyncio.CancelledError:
        if connection is not None:
            connection.close("dialing was cancelled")
        raise
    return connection


async def adopt(sock: socket.socket, limits: Limits | None = None) -> Connection:
    """A connection over one end of a socket pair: the peer is our own child, so no handshake."""
    loop = asyncio.get_running_loop()
    sock.setblocking(False)
    _, connection = await loop.create_unix_connection(
        lambda: Connection(limits or Limits(), handshake=None), sock=sock
    )
    return connection
