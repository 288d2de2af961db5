"""What two node caches say to each other, and what they tolerate.

After the handshake of ``wire`` the client sends a ``Request`` as a frame and gets an ``Answer`` as
a frame; right behind that come the images that were found, whole, in the request's order, and
nothing between them. Then the next request. Unknown fields are errors: the handshake has a version,
and to skip them would be to follow nested ones as deep as they go. Must not know sockets.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from cache_tiers.tier import TierError

MAX_KEYS = 4096
"""Of one request."""
MAX_FRAME_BYTES = 64 * MAX_KEYS
"""Of a request or an answer without its images."""


class PeerFailed(TierError):
    """The other side is gone, too slow, or not what it should be; the message says which."""


class PeerClosed(PeerFailed):
    """It closed the connection, which between two requests is its right."""


class Request(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Images that another node wants."""

    fingerprint: bytes
    """Of their layout."""
    image_bytes: Annotated[int, msgspec.Meta(gt=0)]
    """Of each: others are missing."""
    keys: Annotated[list[bytes], msgspec.Meta(max_length=MAX_KEYS)]
    timeout_s: Annotated[float, msgspec.Meta(gt=0)]
    """After that nobody waits for them."""
    with_images: bool
    """Otherwise only the answer comes."""


class Answer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """To a ``Request``."""

    image_bytes: int
    """The request's, so that what follows has the length that the client expects."""
    found: Annotated[list[bool], msgspec.Meta(max_length=MAX_KEYS)]
    """Of the request's keys, in their order."""


@dataclass(frozen=True, slots=True)
class PeerLimits:
    """Of a client and of a server; both sides may have their own."""

    connect_timeout_s: float = 1.0
    """To the end of the handshake, on both sides."""
    timeout_s: float = 2.0
    """A client waits no longer for all that it asked for."""
    max_streams: int = 8
    """Connections that a client has to one peer."""
    streams_per_load: int = 4
    min_stream_bytes: int = 4 * 1024**2
    """A load that gives each stream less uses fewer."""
    max_idle_s: float = 20.0
    """A client closes a connection that it did not use for so long."""
    max_connections: int = 64
    """That a server keeps; those beyond are closed at once."""
    accept_pause_s: float = 1.0
    """A server that could not accept a connection tries again after so long."""
    max_silence_s: float = 60.0
    """A server closes a connection without a request for so long."""
    max_answer_s: float = 10.0
    """A server gives an answer no longer, whatever the request says: leases end by then."""
    max_lent_bytes: int = 1024**3
    """Of all answers at a time; the last keys of what is beyond are missing."""
