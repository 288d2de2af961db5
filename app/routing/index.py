"""Which engine probably holds which prefix. Knows keys and engine ids only.

Keeps every 8th key of a chain (``engine.messages.KEY_STRIDE``). A wrong entry costs time, never
correctness: the engine looks for itself. Sends of this gateway count at once, events of the engines
confirm or take them back, and a gap in an engine's events forgets that engine, since what it
evicted meanwhile is unknown.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from engine.messages import CacheEvents


class PrefixIndex:
    """Key to engines, least recently used keys forgotten beyond ``max_keys``."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._engines_of: OrderedDict[bytes, set[str]] = OrderedDict()
        self._keys_of: dict[str, set[bytes]] = {}
        self._sequence_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._engines_of)

    def num_matching(self, keys: Sequence[bytes]) -> dict[str, int]:
        """For each engine that holds the first of ``keys``: how many it holds without a gap."""
        matching: dict[str, int] = {}
        alive: set[str] | None = None
        for position, key in enumerate(keys):
            holders = self._engines_of.get(key)
            alive = (holders or set()) if alive is None else alive & (holders or set())
            if not alive:
                break
            self._engines_of.move_to_end(key)
            for engine_id in alive:
                matching[engine_id] = position + 1
        return matching

    def add(self, engine_id: str, keys: Iterable[bytes]) -> None:
        """``engine_id`` holds ``keys``, or soon will."""
        own = self._keys_of.setdefault(engine_id, set())
        for key in keys:
            holders = self._engines_of.setdefault(key, set())
            holders.add(engine_id)
            own.add(key)
            self._engines_of.move_to_end(key)
        self._forget_oldest()

    def apply(self, engine_id: str, events: CacheEvents) -> None:
        """Take in what the cache of ``engine_id`` gained and lost."""
        last = self._sequence_of.get(engine_id)
        if last is not None and events.sequence != last + 1:
            self.forget(engine_id)
        self._sequence_of[engine_id] = events.sequence
        for key in events.evicted:
            self._remove(engine_id, key)
        self.add(engine_id, events.stored)

    def forget(self, engine_id: str) -> None:
        """The engine left, or what it holds is unknown."""
        self._sequence_of.pop(engine_id, None)
        for key in list(self._keys_of.get(engine_id, ())):
            self._remove(engine_id, key)
        self._keys_of.pop(engine_id, None)

    def resize(self, max_keys: int) -> None:
        """Keep at most ``max_keys`` from now on."""
        self._max_keys = max_keys
        self._forget_oldest()

    def check_integrity(self) -> None:
        """Both directions say the same, and the bound holds."""
        forward = {(key, engine) for key, held in self._engines_of.items() for engine in held}
        backward = {(key, engine) for engine, keys in self._keys_of.items() for key in keys}
        assert forward == backward, forward ^ backward
        assert all(self._engines_of.values()), "a key without an engine is kept"
        assert len(self._engines_of) <= self._max_keys

    def _forget_oldest(self) -> None:
        while len(self._engines_of) > self._max_keys:
            key, holders = self._engines_of.popitem(last=False)
            for holder in holders:
                self._keys_of[holder].discard(key)

    def _remove(self, engine_id: str, key: bytes) -> None:
        holders = self._engines_of.get(key)
        if holders is None or engine_id not in holders:
            return
        holders.discard(engine_id)
        self._keys_of[engine_id].discard(key)
        if not holders:
            del self._engines_of[key]
