"""What routers are told of a node's media: every so manieth block of a chain, came or went.

A block that came and went between two tellings is told as gone, which nobody minds. Must not know
why blocks move.
"""

from dataclasses import dataclass, field

from cache_tiers.keys import BlockKey
from cache_tiers.messages import MediaEvents
from cache_tiers.tier import TierKind


@dataclass(slots=True)
class _Changes:
    stored: dict[BlockKey, None] = field(default_factory=dict)
    evicted: dict[BlockKey, None] = field(default_factory=dict)


class MediaEventLog:
    """Of one layout."""

    def __init__(self, key_stride: int) -> None:
        self._key_stride = key_stride
        self._changes = {TierKind.HOST: _Changes(), TierKind.DISK: _Changes()}
        self._gone: dict[BlockKey, None] = {}

    def is_told(self, chain_len: int) -> bool:
        """Of a full block there; 0: where it stands is not known."""
        return chain_len > 0 and chain_len % self._key_stride == 0

    def came(self, kind: TierKind, key: BlockKey) -> None:
        changes = self._changes[kind]
        changes.evicted.pop(key, None)
        changes.stored[key] = None

    def went(self, kind: TierKind, key: BlockKey) -> None:
        changes = self._changes[kind]
        changes.stored.pop(key, None)
        changes.evicted[key] = None

    def is_gone(self, key: BlockKey) -> None:
        """No medium of the node has it."""
        self._gone[key] = None

    def is_back(self, key: BlockKey) -> None:
        self._gone.pop(key, None)

    def take_events(self) -> list[MediaEvents]:
        """Since the last call; stored keys in the order in which they came."""
        events = [
            MediaEvents(kind, list(changes.stored), list(changes.evicted))
            for kind, changes in self._changes.items()
            if changes.stored or changes.evicted
        ]
        self._changes = {kind: _Changes() for kind in self._changes}
        return events

    def take_gone(self) -> list[bytes]:
        gone: list[bytes] = list(self._gone)
        self._gone.clear()
        return gone
