"""What the node cache asks of a tier: a place where images lie that is not the arena.

Disk, peer and object store implement it. A tier moves images between itself and memory that it is
given, and proves what it brings. Must not know arenas, engines or policies.
"""

from collections.abc import Sequence
from enum import Enum, StrEnum
from typing import Protocol

from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.keys import BlockKey


class TierKind(StrEnum):
    """Where an image was found, nearest first."""

    HOST = "host"
    """The node's arena in CPU memory."""
    DISK = "disk"
    PEER = "peer"
    """Another node's cache."""
    OBJECT = "object"


class Lookup(Enum):
    """What a tier knows of a key."""

    MISS = "miss"
    HIT = "hit"
    PENDING = "pending"
    """It is on its way in."""


class TierError(Exception):
    """A tier can't do what it was asked for: full, read-only, unreachable, too slow. The message
    says why and what to do; the tier's caller goes on without it, and leaves the log line to it.
    """


class Tier(Protocol):
    """Call order: ``open`` once, the rest in any order and side by side, ``close``. All run on one
    event loop and never block it; a call that is cancelled leaves the memory given to it alone
    before the cancellation is done.

    A transport that moves images between nodes by other means (NIXL, Ray Direct Transport) is one
    more implementation of kind ``PEER``: it goes where ``PeerTier`` is made, and nothing else
    changes.
    """

    @property
    def kind(self) -> TierKind: ...

    async def find(self, layout: ImageLayout, keys: Sequence[BlockKey]) -> list[Lookup]:
        """What is held of ``keys``, in their order. Raises ``TierError``."""
        ...

    async def load(self, images: Sequence[BlockImage]) -> list[bool]:
        """Fill the images' memory; which of them are there and sound. One that is held but not
        sound is counted, and not found again. Raises ``TierError`` when none could be had.
        """
        ...

    async def store(self, images: Sequence[BlockImage]) -> list[bool]:
        """Keep copies of the images; which of them are held now. The memory is free again when
        this returns. Raises ``TierError`` when the tier takes nothing for now.
        """
        ...

    async def close(self) -> None: ...
