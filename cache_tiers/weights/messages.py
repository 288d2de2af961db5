"""What is wanted of a node's weights and what has come of it. Frozen, msgpack-able.

A model's weights are some files. Must not know what is in them, nor who decides on rungs.
"""

from typing import Literal

import msgspec

from cache_tiers.messages import PeerAddress
from cache_tiers.rung import Rung

CHUNK_BYTES = 8 * 1024**2
"""Files travel between nodes in chunks of so many bytes, the last one shorter."""
_MAX_NAME_BYTES = 255


class WeightFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One file of a model. Other nodes send it, too: to skip unknown fields would be to follow
    nested ones as deep as they go."""

    name: str
    """Without folders."""
    num_bytes: int
    sha256: str | None = None
    """Of the content; None: the source doesn't say, so it is known when all of it is here."""


def can_be_file_name(name: str) -> bool:
    """Whether a file of a model may have it: in its folder, not hidden, and fit to be shown."""
    is_plain = name.isprintable() and "/" not in name and not name.startswith(".")
    return bool(name) and is_plain and len(name.encode()) <= _MAX_NAME_BYTES


class WeightsOrder(msgspec.Struct, frozen=True):
    """What shall stand on one node of one model. Repeating an order changes nothing."""

    model: str
    """The name that it is stored under."""
    source: str
    """As in a model's ``source``."""
    rung: Rung
    """STAGED or ON_DISK: at least that; COLD: neither memory nor a bounded disk is kept for it."""
    source_sha256: str | None = None
    weights_sha256: str | None = None
    """Pins, as in a model's ``args``."""
    parents: tuple[PeerAddress, ...] = ()
    """Other nodes' weights, who to ask first at the front; the source is asked last."""


class Stage(msgspec.Struct, frozen=True, array_like=True):
    """One part of what a promotion or a start took; parts may overlap."""

    name: str
    time_s: float
    num_bytes: int = 0
    """That were moved; 0: it isn't about bytes."""


Origin = Literal["", "memory", "disk", "peer", "source"]
"""Where the bytes of the last promotion came from; empty: there was none."""


class WeightsState(msgspec.Struct, frozen=True):
    """How one model stands on one node."""

    model: str
    rung: Rung
    """What it has reached: whole and checked."""
    wanted: Rung
    revision: str = ""
    """The weights' sha256, once known."""
    folder: str = ""
    """A checkpoint that ranks of this node can open; empty while COLD."""
    num_bytes: int = 0
    """Of all its files, once known."""
    num_done_bytes: int = 0
    """Of these, what the promotion that is under way has brought."""
    origin: Origin = ""
    stages: tuple[Stage, ...] = ()
    """Of the last promotion."""
    start_stages: tuple[Stage, ...] = ()
    """Of the last replica that started here from it."""
    num_leases: int = 0
    """Replicas that use it."""
    failure: str | None = None
    """Why the wanted rung isn't reached: one line that says what to do. The old rung stays."""


class NodeWeightsReport(msgspec.Struct, frozen=True):
    """All models of one node."""

    address: PeerAddress | None
    """Where other nodes get them; None: this node lends nothing."""
    host_bytes: int
    """Memory for weights."""
    used_bytes: int
    models: tuple[WeightsState, ...] = ()
