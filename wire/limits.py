"""What a connection tolerates before it closes itself."""

from dataclasses import dataclass

from wire.frames import MAX_FRAME_BYTES

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds in bytes and seconds; both sides may have their own."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    max_send_queue_bytes: int = MAX_FRAME_BYTES + MIB
    """More than this unsent closes the connection: the peer does not read."""
    max_receive_queue_bytes: int = 16 * MIB
    """More than this unread stops reading from the socket until half of it has been taken."""
    heartbeat_period_s: float | None = 1.0
    """An empty frame goes out when nothing else did for so long; ``None`` turns heartbeats off."""
    heartbeat_timeout_s: float = 5.0
    """A peer that sent nothing for so long is gone."""
    handshake_timeout_s: float = 5.0
    flush_timeout_s: float = 2.0
    """What was sent before ``close`` gets so long to leave."""
