"""The front's copy of the keys that the prefix cache announced: what a snapshot is made of.

As large as the cache itself, since what it evicts leaves here, too. Must not know connections.
"""

from itertools import islice

from engine.messages import CacheEvents, CacheSnapshot

MAX_PART_KEYS = 4096
"""Per message: some 140 kB."""


class CacheMirror:
    """Follows the events of one engine, all of them and in order."""

    def __init__(self) -> None:
        self._sequence = 0
        self._keys: dict[bytes, None] = {}
        """In order of storing, which keeps the keys of one chain side by side."""

    def __len__(self) -> int:
        return len(self._keys)

    def apply(self, events: CacheEvents) -> None:
        self._sequence = events.sequence
        for key in events.evicted:
            self._keys.pop(key, None)
        self._keys.update(dict.fromkeys(events.stored))

    def snapshot(self) -> list[CacheSnapshot]:
        """Everything, in parts; one without keys if nothing is held."""
        num_parts = max(1, -(-len(self._keys) // MAX_PART_KEYS))
        keys = iter(self._keys)
        return [
            CacheSnapshot(
                self._sequence,
                list(islice(keys, MAX_PART_KEYS)),
                is_first=part == 0,
                is_last=part == num_parts - 1,
            )
            for part in range(num_parts)
        ]
