"""Frames over a local socket without an event loop: for a single-threaded loop that also computes.

The peer is our parent or child process, so there is no handshake. Must not know what is sent.
"""

import select
import selectors
import socket
import time
from collections.abc import Iterable

from wire.errors import ConnectionClosed
from wire.frames import HEARTBEAT, MAX_FRAME_BYTES, FrameDecoder, encode_frame

_READ_BYTES = 256 * 1024


def wait_any(pipes: Iterable["SyncPipe"], timeout_s: float) -> None:
    """Wait, at most so long, until ``poll`` of one of them has something to move."""
    poller = select.poll()
    for pipe in pipes:
        poller.register(pipe.fileno(), select.POLLIN | (select.POLLOUT if pipe.queued_bytes else 0))
    poller.poll(1000 * timeout_s)


class SyncPipe:
    """One end of a socket pair. ``send`` never blocks; ``poll`` moves bytes both ways."""

    def __init__(
        self,
        sock: socket.socket,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        max_send_queue_bytes: int = 2 * MAX_FRAME_BYTES,
    ) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._max_frame_bytes = max_frame_bytes
        self._max_send_queue_bytes = max_send_queue_bytes
        self._decoder = FrameDecoder(max_frame_bytes)
        self._outgoing = bytearray()
        self._selector = selectors.DefaultSelector()
        self._interest = selectors.EVENT_READ
        self._selector.register(sock, self._interest)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def queued_bytes(self) -> int:
        """Bytes sent that have not left for the kernel yet."""
        return len(self._outgoing)

    def send(self, payload: bytes) -> None:
        """Write what the kernel takes now; the rest leaves during ``poll``.

        Raises ``FrameTooLargeError``; ``ConnectionClosed`` when the peer is gone or does not read.
        """
        if not payload:
            raise ValueError("an empty frame is a heartbeat; send at least one byte")
        self._write(encode_frame(payload, self._max_frame_bytes))

    def send_heartbeat(self) -> None:
        """Show the peer that this loop goes round."""
        self._write(HEARTBEAT)

    def poll(self, timeout_s: float) -> list[bytes]:
        """All complete frames that are here; waits up to ``timeout_s`` for one when there is none.

        Raises ``ConnectionClosed`` at the end of the stream.
        """
        deadline_s = time.monotonic() + timeout_s
        while True:
            self._set_interest()
            wait_s = max(0.0, deadline_s - time.monotonic())
            for _, events in self._selector.select(wait_s):
                if events & selectors.EVENT_WRITE:
                    self._flush()
                if events & selectors.EVENT_READ:
                    self._read()
            payloads = self._decoder.frames()
            if payloads or time.monotonic() >= deadline_s:
                return payloads

    def flush(self, timeout_s: float) -> None:
        """Wait until all that was sent has left: for the last words before an exit."""
        deadline_s = time.monotonic() + timeout_s
        while self._outgoing and time.monotonic() < deadline_s:
            self._set_interest()
            self._selector.select(0.05)
            self._flush()

    def close(self) -> None:
        self._selector.close()
        self._socket.close()

    def _write(self, frame: bytes) -> None:
        if len(self._outgoing) + len(frame) > self._max_send_queue_bytes:
            raise ConnectionClosed(
                f"the peer does not keep up: {len(self._outgoing)} bytes wait to be sent, "
                f"the limit is {self._max_send_queue_bytes}"
            )
        self._outgoing += frame
        self._flush()

    def _flush(self) -> None:
        try:
            while self._outgoing:
                num_sent = self._socket.send(self._outgoing)
                del self._outgoing[:num_sent]
        except BlockingIOError:
            pass
        except OSError as error:
            raise ConnectionClosed(f"connection lost: {error}") from error

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            raise ConnectionClosed(f"connection lost: {error}") from error
        if not data:
            raise ConnectionClosed("the peer closed the connection")
        self._decoder.feed(data)

    def _set_interest(self) -> None:
        interest = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._outgoing else 0)
        if interest != self._interest:
            self._selector.modify(self._socket, interest)
            self._interest = interest
