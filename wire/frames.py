"""Frames: a 4-byte little-endian length, then that many bytes of payload.

No I/O; must not know what is sent.
An empty frame is a heartbeat; it carries nothing and is never handed to the application.
"""

from wire.errors import FrameTooLargeError

HEADER_BYTES = 4
MAX_FRAME_BYTES = 64 * 1024 * 1024
HEARTBEAT = bytes(HEADER_BYTES)
"""An encoded empty frame."""


def encode_frame(payload: bytes, max_frame_bytes: int = MAX_FRAME_BYTES) -> bytes:
    """``payload`` with its header. Raises ``FrameTooLargeError``."""
    if len(payload) > max_frame_bytes:
        raise FrameTooLargeError(len(payload), max_frame_bytes)
    return len(payload).to_bytes(HEADER_BYTES, "little") + payload


class FrameDecoder:
    """Cuts a byte stream, however it was chunked, back into frames."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.max_frame_bytes = max_frame_bytes
        """May be raised between two frames: a peer not yet authenticated gets a small one."""
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def next_frame(self) -> bytes | None:
        """The next complete payload, empty for a heartbeat; ``None`` until more bytes come.

        Raises ``FrameTooLargeError`` once the header is in, before memory is spent on the payload.
        """
        buffer = self._buffer
        if len(buffer) < HEADER_BYTES:
            return None
        payload_bytes = int.from_bytes(buffer[:HEADER_BYTES], "little")
        if payload_bytes > self.max_frame_bytes:
            raise FrameTooLargeError(payload_bytes, self.max_frame_bytes)
        end = HEADER_BYTES + payload_bytes
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            payload = bytes(view[HEADER_BYTES:end])
        del buffer[:end]  # constant time: bytearray moves its start instead of its content
        return payload

    def frames(self) -> list[bytes]:
        """All complete payloads, heartbeats left out."""
        payloads: list[bytes] = []
        while (payload := self.next_frame()) is not None:
            if payload:
                payloads.append(payload)
        return payloads
