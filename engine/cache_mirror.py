"""The front's copy of the keys that an engine's media announced: what a snapshot is made of.

As large as what they hold, since what they evict leaves here, too. Must not know connections.
"""

from itertools import islice

from engine.messages import CacheEvents, CacheSnapshot, Medium

MAX_PART_KEYS = 4096
"""Per message: some 140 kB."""


class CacheMirror:
    """Follows the events of one engine, all of them and in order."""

    def __init__(self) -> None:
        self._sequence = 0
        self._keys: dict[Medium, dict[bytes, None]] = {medium: {} for medium in Medium}
        """In order of storing, which keeps the keys of one chain side by side."""

    def __len__(self) -> int:
        return sum(map(len, self._keys.values()))

    def apply(self, events: CacheEvents) -> None:
        self._sequence = events.sequence
        held = self._keys[events.medium]
        for key in events.evicted:
            held.pop(key, None)
        held.update(dict.fromkeys(events.stored))

    def snapshot(self) -> list[CacheSnapshot]:
        """Everything, in parts of one medium each; one without keys if nothing is held."""
        slices = [
            (medium, keys) for medium, held in self._keys.items() for keys in _slices(held)
        ] or [(Medium.ACCELERATOR, [])]
        return [
            CacheSnapshot(
                self._sequence,
                keys,
                is_first=part == 0,
                is_last=part == len(slices) - 1,
                medium=medium,
            )
            for part, (medium, keys) in enumerate(slices)
        ]


def _slices(held: dict[bytes, None]) -> list[list[bytes]]:
    keys = iter(held)
    return [list(islice(keys, MAX_PART_KEYS)) for _ in range(0, len(held), MAX_PART_KEYS)]
