"""What engine ranks and their node's cache say to each other over a Unix socket, one per ``wire``
frame. KV itself never travels here: both map the arena, and say offsets in it.

A rank connects, sends ``Open`` and gets ``Welcome`` with the arena's file descriptor as ancillary
data; ranks other than 0 say nothing more. Rank 0 then writes what it evicts to slots that it was
granted (``Slots``, ``Store``), and asks for what prompts need (``Fetch``, ``Fetched``,
``Loaded``).
All that a connection holds, slots and leases, is the node's again when it closes.
"""

import msgspec

from cache_tiers.block_image import ImageLayout
from cache_tiers.tier import TierKind


class PeerAddress(msgspec.Struct, frozen=True, array_like=True):
    """Another node's cache."""

    host: str
    port: int
    secret: bytes
    """That a connection must prove to know."""


class RecomputeCost(msgspec.Struct, frozen=True, array_like=True):
    """What the engine takes to compute a prompt instead of loading it, as measured; zeros while
    unknown.
    """

    step_s: float = 0.0
    """Of every step."""
    step_tokens: int = 0
    """Prompt tokens in one step."""
    token_s: float = 0.0
    """Of each token."""
    attended_s: float = 0.0
    """Of each token and each position before it."""
    queue_s: float = 0.0
    """Before the prompt could start at all: a load that takes no longer costs nothing."""


class Open(msgspec.Struct, frozen=True, tag="open"):
    """A rank's first message."""

    layout: ImageLayout
    rank: int
    model: str
    """For log lines and metrics."""
    key_stride: int
    """``MediaEvents`` name every so manieth key of a chain."""


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """An image that is complete, on all ranks, in a slot that was granted."""

    offset: int
    key: bytes
    num_tokens: int
    """Fewer than a block's for the last block of a pinned prefix."""
    chain_len: int
    """Blocks from the start of the prompt to this one, itself included."""
    recompute_s: float
    """What computing this block again would take."""


class Store(msgspec.Struct, frozen=True, tag="store"):
    """Slots that were used, each of which the node owns again."""

    images: list[Stored]


class Partial(msgspec.Struct, frozen=True, array_like=True):
    """The last block of a prefix that does not end with a block."""

    key: bytes
    chain_len: int
    """Full blocks before it."""
    num_tokens: int


class Fetch(msgspec.Struct, frozen=True, tag="fetch"):
    """A prompt came: bring its blocks into the arena, as far as that is quicker than computing
    them. Answered by one ``Fetched``; nothing is held before.
    """

    fetch_id: int
    keys: list[bytes]
    """The whole chain of the prompt."""
    num_held: int
    """Leading blocks that the accelerator has: not to be brought."""
    partials: list[Partial]
    """At the prompt's cache breakpoints."""
    cost: RecomputeCost
    timeout_s: float
    """Answer by then, with what is there."""
    peer: PeerAddress | None = None
    """Where the router saw more of it."""


class Found(msgspec.Struct, frozen=True, array_like=True):
    """An image in the arena, leased until ``Loaded`` or ``Cancel``."""

    offset: int
    key: bytes
    num_tokens: int
    kind: TierKind
    """Where it lay when it was asked for."""


class Fetched(msgspec.Struct, frozen=True, tag="fetched"):
    """The answer to a ``Fetch``: leading blocks after ``num_held``, a partial one last."""

    fetch_id: int
    images: list[Found]
    predicted_s: float
    """What bringing them was expected to take."""
    fetch_s: float
    """And what it took."""


class Loaded(msgspec.Struct, frozen=True, tag="loaded"):
    """The engine has copied what it wanted of a fetch: its leases end."""

    fetch_id: int
    num_images: int
    load_s: float
    """From the arena to the accelerator."""
    bad_keys: list[bytes] = []
    """Not what they should be: to be counted, and found by nobody again."""


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """A fetch is not needed any more, answered or not: its leases end."""

    fetch_id: int


class Pin(msgspec.Struct, frozen=True, tag="pin"):
    """A prefix that was stored survives eviction for ``ttl_s``, if its tenant's quota allows."""

    root_key: bytes
    """Of the tenant, whose quota counts."""
    keys: list[bytes]
    """A partial block's last."""
    ttl_s: float


class Ended(msgspec.Struct, frozen=True, tag="ended"):
    """An answer is complete; its session may come back with a longer prompt."""

    last_key: bytes
    """Of the last full block, answer included."""
    keys: list[bytes]
    """The whole chain."""
    session_kind: str
    """Return times are learned by it."""
    expected_return_s: float | None = None
    """As the client says."""


class Exported(msgspec.Struct, frozen=True, tag="exported"):
    """All that the engine holds of an ``Export`` has been stored."""

    export_id: int


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The answer to ``Open``; the arena's descriptor comes with it."""

    arena_bytes: int


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The answer to ``Open`` instead: why this engine can't use the cache."""

    reason: str


class Slots(msgspec.Struct, frozen=True, tag="slots"):
    """Free slots, each of one image, that the engine may write."""

    offsets: list[int]


class MediaEvents(msgspec.Struct, frozen=True, tag="media"):
    """What one of the node's media gained and lost of this layout, for routers; the first ones
    after ``Welcome`` tell all that is held.
    """

    kind: TierKind
    stored: list[bytes]
    """In runs, as ``engine.messages.CacheEvents`` has them."""
    evicted: list[bytes]


class Gone(msgspec.Struct, frozen=True, tag="gone"):
    """Keys that the node holds nowhere any more: what the accelerator evicts of them is worth
    storing again.
    """

    keys: list[bytes]


class Export(msgspec.Struct, frozen=True, tag="export"):
    """Another node wants these: store what the accelerator holds of them."""

    export_id: int
    keys: list[bytes]


EngineToNode = Open | Store | Fetch | Loaded | Cancel | Pin | Ended | Exported
NodeToEngine = Welcome | Refused | Slots | Fetched | MediaEvents | Gone | Export
