"""What an engine was expected to load of a prompt, and what it then loaded.

Must not know how a source is chosen.
"""

from typing import NamedTuple

from app.routing.candidate import SourceKind
from engine.messages import RestoredTokens


class ExpectedTransfer(NamedTuple):
    """Of one submission."""

    kind: SourceKind
    """Never ``LOCAL``."""
    num_tokens: int
    time_s: float


class Transfer(NamedTuple):
    """What came of a prompt from outside of the accelerator, and how long that took."""

    kind: SourceKind
    """The farthest medium; a peer where one was named, even if it was a neighbour, which stored in
    the memory of the node that both share.
    """
    num_tokens: int
    """From there."""
    num_nearer_tokens: int
    """From nearer media, in the same time."""
    time_s: float


def transfer_of(restored: RestoredTokens, expected: ExpectedTransfer | None) -> Transfer | None:
    """None if nothing came, or a part of it from where no router sends for it."""
    host, disk, peer = restored.host, restored.disk, restored.peer
    if host + disk + peer <= 0 or restored.object_store > 0:
        return None
    if peer > 0 or (expected is not None and expected.kind is SourceKind.PEER):
        return Transfer(SourceKind.PEER, host + disk + peer, 0, restored.seconds)
    if disk > 0:
        return Transfer(SourceKind.DISK, disk, host, restored.seconds)
    return Transfer(SourceKind.HOST, host, 0, restored.seconds)


def num_restored(restored: RestoredTokens | None) -> int:
    """Tokens of all media."""
    if restored is None:
        return 0
    return restored.host + restored.disk + restored.peer + restored.object_store
