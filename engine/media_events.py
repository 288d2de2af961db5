"""What the media of an engine's node hold, as routers are told it.

Must not know the connection, nor the accelerator's own keys.
"""

from collections.abc import Iterator

from cache_tiers.messages import MediaEvents
from cache_tiers.tier import TierKind
from engine.messages import CacheEvents, Medium

_MEDIA = {TierKind.HOST: Medium.HOST, TierKind.DISK: Medium.DISK}


class MediaEventLog:
    """Owner of the events that nobody has taken yet, and of the keys told so far."""

    def __init__(self) -> None:
        self._keys: dict[Medium, set[bytes]] = {medium: set() for medium in _MEDIA.values()}
        self._events: list[tuple[Medium, list[bytes], list[bytes]]] = []

    def add(self, events: MediaEvents) -> None:
        """Peers and object stores are no medium of this replica."""
        medium = _MEDIA.get(events.kind)
        if medium is not None and (events.stored or events.evicted):
            self._keys[medium].difference_update(events.evicted)
            self._keys[medium].update(events.stored)
            self._events.append((medium, events.stored, events.evicted))

    def forget(self) -> None:
        """The node is gone: nothing can be found there."""
        for medium, keys in self._keys.items():
            if keys:
                self._events.append((medium, [], list(keys)))
                keys.clear()

    def take(self, numbers: Iterator[int]) -> list[CacheEvents]:
        """All since the last call. ``numbers`` counts the events of all media of the replica."""
        events, self._events = self._events, []
        return [
            CacheEvents(next(numbers), stored, evicted, medium)
            for medium, stored, evicted in events
        ]
