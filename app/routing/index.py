"""Which engine probably holds which prefix. Knows keys, engine ids and request ids only.

Keeps every 8th key of a chain (``engine.messages.KEY_STRIDE``). A wrong entry costs time, never
correctness: the engine looks for itself. Two layers: what engines said they hold (snapshots and
events, checked by their sequence numbers), and what this gateway has just sent them, which counts
until the engine has computed it or has ended it unseen.

    key ──▶ bits, one per engine: 0b0101 is held by the engines of bits 0 and 2
    forget an engine ──▶ its bit is retired at once, and free again after a sweep in slices

Keys live in two generations. A used key moves to the young one; when that is half of the bound, the
old one is dropped: nothing of the most recently used half is ever lost, and no order is kept. The
bound is of bytes, as ``tracemalloc`` counts them, and holds for everything that is kept here.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from app.routing.sent_prefixes import SentPrefixes
from cache_tiers.keys import KEY_BYTES
from engine.messages import CacheEvents, CacheSnapshot

BYTES_PER_KEY = 200
"""At most, with the bits of up to 30 engines: the key and its bits as objects (50 + 28), a dict's
entry just after it grew (60), and a place in a sweep, which may be all that is left of another key
(8 + 50).
"""
_ENGINES_PER_WORD = 30
_BYTES_PER_WORD = 4
"""An integer grows by that for each so many bits."""

_MAX_EVICTED_MEANWHILE = 1 << 16
"""Keys that an engine may take back while it sends a snapshot, which takes no longer than a step or
two; with more, it starts over.
"""

_SWEPT_PER_KEY = 4
_SWEPT_PER_CALL = 64
"""A sweep goes on whenever something is learned, by this much: it never holds up the loop."""


@dataclass(slots=True, eq=False)
class _Engine:
    """One engine's bit, and how far its events were followed."""

    bit: int
    sequence: int | None = None
    """Of the last events or snapshot; None: nothing was heard yet."""
    is_lost: bool = False
    """Events were missed: nothing is believed until the first part of a snapshot."""
    evicted: set[bytes] | None = None
    """While parts of a snapshot are outstanding: what they still name but is gone."""


@dataclass(slots=True, eq=False)
class _Sweep:
    """Removes retired bits from the keys there were when it began."""

    bits: int
    keys: list[bytes] = field(default_factory=list)


class PrefixIndex:
    """Key to engines; the least recently used keys are forgotten beyond ``max_bytes``."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._max_generation_keys = 1
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}
        self._engines: dict[str, _Engine] = {}
        self._id_of: dict[int, str] = {}
        self._live_bits = 0
        self._retired_bits = 0
        """Not to be used again before a sweep that began after they were retired."""
        self._sweep: _Sweep | None = None
        self._sent = SentPrefixes()
        self._fit()

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def num_bytes(self) -> int:
        """At most so much is taken: by what engines hold, and by what was sent to them."""
        return len(self) * self._bytes_per_key + self._sent.num_bytes

    def num_matching(self, keys: Sequence[bytes]) -> dict[str, int]:
        """For each engine that holds the first of ``keys``: how many it holds without a gap."""
        return self._match(keys, with_sent=True)

    def num_confirmed(self, engine_id: str, keys: Sequence[bytes]) -> int:
        """As ``num_matching`` for one engine, but only what it said itself."""
        return self._match(keys, with_sent=False).get(engine_id, 0)

    def count_send(self, engine_id: str, request_id: str, keys: Sequence[bytes]) -> None:
        """A request with ``keys`` was sent to the engine, which will hold them soon."""
        bit = self._engine(engine_id).bit
        self._sent.add(bit, request_id, keys, self.num_confirmed(engine_id, keys))
        self._fit()

    def settle_send(
        self, engine_id: str, request_id: str, num_cached_keys: int | None = None
    ) -> bool:
        """The request's prompt is computed, or it has ended before: events tell the rest.

        ``num_cached_keys``: so many were found there. Returns whether that contradicts what the
        engine had said: it then holds less than its events told. Unknown requests are fine.
        """
        engine = self._engines.get(engine_id)
        if engine is None:
            return False
        is_doubtful = self._sent.settle(engine.bit, request_id, num_cached_keys)
        self._fit()
        return is_doubtful

    def is_behind(self, engine_id: str) -> bool:
        """Whether a snapshot of the engine, or the rest of one, has yet to come."""
        engine = self._engines.get(engine_id)
        return engine is not None and (engine.is_lost or engine.evicted is not None)

    def apply(self, engine_id: str, events: CacheEvents) -> bool:
        """Take in what the cache of ``engine_id`` gained and lost.

        Returns whether a snapshot must be asked for: events were missed, all is forgotten.
        """
        engine = self._engine(engine_id)
        if engine.is_lost:
            return False  # the snapshot that was asked for says all of it
        if engine.sequence is not None and events.sequence != engine.sequence + 1:
            self._renew(engine_id).is_lost = True
            return True
        engine.sequence = events.sequence
        for key in events.evicted:
            self._remove(engine.bit, key)
        self._sent.note_evicted(engine.bit, events.evicted)
        if engine.evicted is not None:
            engine.evicted.update(filter(_is_key, events.evicted))
            engine.evicted.difference_update(events.stored)
            if len(engine.evicted) > _MAX_EVICTED_MEANWHILE:
                self._renew(engine_id).is_lost = True
                return True
        self._add(engine.bit, events.stored)
        self._sweep_on(len(events.stored) + len(events.evicted))
        return False

    def seed(self, engine_id: str, snapshot: CacheSnapshot) -> bool:
        """Take in all that the engine holds, or a part of it.

        Returns whether another one must be asked for: the parts do not belong together.
        """
        if snapshot.is_first:
            engine = self._renew(engine_id)
            engine.sequence = snapshot.sequence
            engine.evicted = set()
        else:
            engine = self._engine(engine_id)
            if engine.is_lost:
                return False  # the rest of a snapshot that was given up
            if engine.evicted is None:
                self._renew(engine_id).is_lost = True
                return True
        assert engine.evicted is not None
        gone = engine.evicted
        self._add(engine.bit, (key for key in snapshot.keys if key not in gone))
        if snapshot.is_last:
            engine.evicted = None
        self._sweep_on(len(snapshot.keys))
        return False

    def forget(self, engine_id: str) -> None:
        """The engine left: nothing of it counts from now on."""
        engine = self._engines.pop(engine_id, None)
        if engine is not None:
            self._sent.forget(engine.bit)
            self._retire(engine.bit)

    def resize(self, max_bytes: int) -> None:
        """Take at most ``max_bytes`` from now on."""
        self._max_bytes = max_bytes
        self._fit()

    def check_integrity(self) -> None:
        """Bits, engines and bounds agree. For tests."""
        assert self._live_bits == sum(engine.bit for engine in self._engines.values())
        assert self._id_of == {engine.bit: id_ for id_, engine in self._engines.items()}
        assert not self._live_bits & self._retired_bits
        assert not self._young.keys() & self._old.keys(), "a key of two generations"
        assert len(self._young) < max(1, self._max_generation_keys)
        assert self.num_bytes <= self._max_bytes or len(self) <= 1, "more bytes than allowed"
        assert all(map(_is_key, (*self._young, *self._old)))
        sweeping = self._sweep.bits if self._sweep is not None else 0
        known_bits = self._live_bits | self._retired_bits | sweeping
        for bits in (*self._young.values(), *self._old.values()):
            assert bits, "a key without an engine is kept"
            assert not bits & ~known_bits, "a bit that is free is still in use"
        self._sent.check_integrity(self._live_bits)

    def _match(self, keys: Sequence[bytes], *, with_sent: bool) -> dict[str, int]:
        young, old, sent = self._young, self._old, self._sent.bits_of
        matching: dict[str, int] = {}
        alive = self._live_bits
        num_matching = 0
        for key in keys:
            bits = young.get(key)
            if bits is None:
                bits = old.pop(key, 0)
                if bits:
                    young[key] = bits
                    if len(young) >= self._max_generation_keys:
                        self._turn()
                        young, old = self._young, self._old
            if with_sent and sent:
                bits |= sent.get(key, 0)
            remaining = alive & bits
            if remaining != alive:
                if num_matching:
                    self._note(matching, alive & ~bits, num_matching)
                alive = remaining
                if not alive:
                    break
            num_matching += 1
        self._note(matching, alive if num_matching else 0, num_matching)
        return matching

    def _note(self, matching: dict[str, int], bits: int, num_matching: int) -> None:
        while bits:
            bit = bits & -bits
            matching[self._id_of[bit]] = num_matching
            bits ^= bit

    def _engine(self, engine_id: str) -> _Engine:
        engine = self._engines.get(engine_id)
        return self._enter(engine_id) if engine is None else engine

    def _enter(self, engine_id: str) -> _Engine:
        in_use = self._live_bits | self._retired_bits
        if self._sweep is not None:
            in_use |= self._sweep.bits
        bit = ~in_use & (in_use + 1)  # the lowest one that is free
        self._live_bits |= bit
        self._id_of[bit] = engine_id
        self._fit()
        engine = self._engines[engine_id] = _Engine(bit)
        return engine

    def _renew(self, engine_id: str) -> _Engine:
        """Forget what the engine said; what was sent to it still counts."""
        before = self._engines.pop(engine_id, None)
        engine = self._enter(engine_id)
        if before is not None:
            self._sent.move(before.bit, engine.bit)
            self._retire(before.bit)
        return engine

    def _retire(self, bit: int) -> None:
        self._live_bits &= ~bit
        self._retired_bits |= bit
        del self._id_of[bit]

    def _add(self, bit: int, keys: Iterable[bytes]) -> None:
        young, old = self._young, self._old
        for key in filter(_is_key, keys):
            bits = young.get(key)
            if bits is None:
                bits = old.pop(key, 0)
            young[key] = bits | bit
            if len(young) >= self._max_generation_keys:
                self._turn()
                young, old = self._young, self._old

    def _remove(self, bit: int, key: bytes) -> None:
        for generation in (self._young, self._old):
            bits = generation.get(key)
            if bits is not None:
                if bits & ~bit:
                    generation[key] = bits & ~bit
                else:
                    del generation[key]
                return

    def _turn(self) -> None:
        """The young generation is full: it becomes the old one, whose keys are forgotten."""
        self._old = self._young
        self._young = {}

    @property
    def _bytes_per_key(self) -> int:
        in_use = self._live_bits | self._retired_bits
        return BYTES_PER_KEY + in_use.bit_length() // _ENGINES_PER_WORD * _BYTES_PER_WORD

    def _fit(self) -> None:
        """Keys, or what they and the sends take, have changed: keep within the bound."""
        max_keys = max(1, (self._max_bytes - self._sent.num_bytes) // self._bytes_per_key)
        self._max_generation_keys = max(1, max_keys // 2)
        if len(self._young) >= self._max_generation_keys:
            self._turn()
        while len(self) > max_keys:
            self._old.popitem()

    def _sweep_on(self, num_keys: int) -> None:
        """Go on removing retired bits, a few for each of the ``num_keys`` that were learned."""
        if self._sweep is None:
            if not self._retired_bits:
                return
            self._sweep = _Sweep(self._retired_bits, [*self._old, *self._young])
            self._retired_bits = 0
        keys = self._sweep.keys
        for _ in range(min(len(keys), _SWEPT_PER_CALL + _SWEPT_PER_KEY * num_keys)):
            self._remove(self._sweep.bits, keys.pop())
        if not keys:
            self._sweep = None


def _is_key(key: bytes) -> bool:
    """Whoever sends something else is no engine of ours, and might send something large."""
    return len(key) == KEY_BYTES
