"""What can go wrong on a connection.

WireError
├── FrameTooLargeError  a frame longer than the limit was announced or offered
├── HandshakeError      the peer is not one of ours, or speaks another version
└── ConnectionClosed    the connection is gone; ``reason`` says why
"""


class WireError(Exception):
    """Base of everything this package raises."""


class FrameTooLargeError(WireError):
    """A frame longer than ``max_frame_bytes``."""

    def __init__(self, frame_bytes: int, max_frame_bytes: int) -> None:
        super().__init__(f"frame of {frame_bytes} bytes is over the limit of {max_frame_bytes}")


class HandshakeError(WireError):
    """The peer could not be authenticated."""


class ConnectionClosed(WireError):
    """Nothing more will come from this connection."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
