"""What two nodes say to each other about weights, and what they tolerate.

After the handshake of ``wire`` the client sends an ``Ask`` as a frame and gets an ``Offer``, or a
``No``. Then it may send a ``Take`` for each chunk, some ahead of the answers, which come in the
same order: a ``Chunk`` with the bytes right behind it, or a ``No``. It may ask again at any time.
Unknown fields are errors: the handshake has a version. Must not know sockets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.messages import CHUNK_BYTES, WeightFile

DIGEST_BYTES = 16
MAX_REQUEST_BYTES = 16 * 1024
MAX_ANSWER_BYTES = 4 * 1024**2
"""An offer with a manifest is the longest; what follows a ``Chunk`` is no part of a frame."""
MAX_FILES = 4096

_Text = Annotated[str, msgspec.Meta(max_length=2048)]
_Size = Annotated[int, msgspec.Meta(ge=0)]
_Wait = Annotated[float, msgspec.Meta(ge=0, le=3600)]


class Ask(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="ask"):
    """Which weights are wanted; the names and pins of a ``WeightsOrder``."""

    model: _Text
    source: _Text
    source_sha256: _Text | None = None
    weights_sha256: _Text | None = None
    child: Annotated[bytes, msgspec.Meta(max_length=32)] = b""
    """Who asks: the connections of one child share it."""
    wait_s: _Wait = 0.0
    """How long the answer may wait for files that aren't known yet."""
    wants_manifest: bool = False
    """Then it waits for the manifest, too."""


class Take(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="take"):
    """One chunk of what was offered."""

    name: _Text
    index: _Size
    wait_s: _Wait
    """How long the answer may wait for it to arrive there."""


class Offer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="offer"):
    """What there is, or will be."""

    stamp: str
    """Of the revision: chunks from two nodes with the same one fit together."""
    files: Annotated[list[WeightFile], msgspec.Meta(max_length=MAX_FILES)]
    """Empty: they aren't known yet."""
    num_arrived_bytes: _Size
    manifest: bytes | None
    """``None``: not known yet."""


class Chunk(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="chunk"):
    """Its bytes follow."""

    num_bytes: Annotated[int, msgspec.Meta(gt=0, le=CHUNK_BYTES)]
    digest: Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    """xxh3_128."""


class No(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, tag="no"):
    """``absent``: it neither has these weights nor brings them. ``busy``: it has children enough.
    ``later``: the chunk hasn't arrived there yet.
    """

    why: Literal["absent", "busy", "later"]
    num_leading_chunks: Annotated[list[_Size], msgspec.Meta(max_length=MAX_FILES)] = []
    """With ``later``: of each file of the offer, the chunks from its begin on that are there. Files
    arrive side by side, in whatever order."""


Request = Ask | Take
Answer = Offer | Chunk | No


@dataclass(frozen=True, slots=True)
class Lent:
    """One model's weights as a node offers them; also while they are on their way."""

    stamp: str
    """Of the revision, as a child gets it from its parent: the same on all nodes that hold the
    same bytes."""
    files: Sequence[ArrivingFile]
    """Empty while they aren't known, though this node will have them: children wait then."""
    manifest: bytes | None
    """As soon as it is known, also before all chunks are here."""


@dataclass(frozen=True, slots=True)
class ChunkLimits:
    """Of a child and of a parent; both sides may have their own."""

    connect_timeout_s: float = 2.0
    """To the end of the handshake, on both sides."""
    silence_s: float = 5.0
    """A parent from which not a byte comes for so long is left."""
    chunk_s: float = 15.0
    """One that takes longer for a chunk is left, too; a child that does is cut off."""
    later_s: float = 1.0
    """A parent waits no longer for a chunk to arrive before it says ``later``."""
    starve_s: float = 60.0
    """A child that got no chunk from anybody for so long gives up."""
    absent_s: float = 1.0
    """So long from the beginning a parent that has nothing is asked again before the next one:
    orders reach nodes in any order."""
    patience_s: float = 5.0
    """So long from the beginning one that doesn't know the files yet is waited for before the next
    one is asked: a chain forms from its head."""
    retry_s: float = 0.2
    """Pause before parents are asked again."""
    scout_s: float = 2.0
    """Period of looking whether another parent is quicker."""
    slow_factor: float = 3.0
    """One that is so many times as quick is taken instead."""
    num_streams: int = 4
    """Connections to one parent: clouds limit each to 5 Gbit/s."""
    max_children: int = 4
    """That take from one parent at a time; others are told to go elsewhere."""
    max_connections: int = 64
    """That a parent keeps; those beyond are closed at once."""
    max_silence_s: float = 30.0
    """A parent closes a connection without a request for so long."""
    accept_pause_s: float = 1.0
    """A parent that could not accept a connection tries again after so long."""
    max_model_bytes: int = 16 * 1024**4
    """An offer of more is a lie."""


@dataclass(slots=True)
class PeerCounts:
    """What came from peers since the start, and what went wrong. Owner: the node's weights; all
    promotions of a node add to it, on its event loop.
    """

    num_chunks: int = 0
    num_bytes: int = 0
    num_corrupt: int = 0
    """Chunks whose digest was wrong."""
    num_lost: int = 0
    """Times that a parent was gone, refused, or broke its word."""
    num_stalled: int = 0
    """Times that one said nothing, or was too slow for any use."""
    num_busy: int = 0
    num_slow: int = 0
    """Times that one was left for a quicker one."""


@dataclass(frozen=True, slots=True)
class PeerResult:
    """All chunks are here, each as its digest says; nobody has checked whole files yet."""

    stamp: str
    manifest: bytes
    files: Sequence[ArrivingFile]
