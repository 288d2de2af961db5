"""Which engine probably holds which prefix, and where. Knows keys, engine and request ids only.

Keeps every 8th key of a chain (``engine.messages.KEY_STRIDE``). A wrong entry costs time, never
correctness: the engine looks for itself. Two layers: what engines said they hold (snapshots and
events, checked by their sequence numbers), and what this gateway has just sent them, which counts
until the engine has computed it or has ended it unseen.

    key ──▶ bits, three per engine: its accelerator, its node's CPU memory and NVMe
            0b110_001: on the accelerator of the first, in the memory and on the disk of the second
    forget an engine ──▶ its bits are retired at once, and free again after a sweep in slices

The bound is of bytes, as ``tracemalloc`` counts them, and holds for everything that is kept here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.routing.key_table import KeyTable, is_key
from app.routing.sent_prefixes import SentPrefixes
from engine.messages import CacheEvents, CacheSnapshot, Medium

BYTES_PER_KEY = 200
"""At most, with the bits of up to 10 engines: the key and its bits as objects (50 + 28), a dict's
entry just after it grew (60), and a place in a sweep, which may be all that is left of another key
(8 + 50).
"""
_BITS_PER_WORD = 30
_BYTES_PER_WORD = 4
"""An integer grows by that for each so many bits."""
_ALL_MEDIA = (2 << Medium.DISK) - 1
"""The bits of an engine, as multiples of its first."""

_MAX_EVICTED_MEANWHILE = 1 << 16
"""Keys that an engine may take back while it sends a snapshot, which takes no longer than a step or
two; with more, it starts over.
"""
_BYTES_PER_EVICTED = 180
"""At most, of such a key: the object, and its place in a set just after that grew."""


class HeldKeys(NamedTuple):
    """How many of a prompt's keys an engine holds without a gap, counted from the first, by how far
    it must reach; each counts what lies nearer, too. As ``candidate.HeldPrefix``, in keys.
    """

    accelerator: int = 0
    host: int = 0
    disk: int = 0


NO_KEYS = HeldKeys()


@dataclass(slots=True, eq=False)
class _Engine:
    """One engine's bits, and how far its events were followed."""

    bit: int
    """The first of them, its accelerator's."""
    sequence: int | None = None
    """Of the last events or snapshot; None: nothing was heard yet."""
    is_lost: bool = False
    """Events were missed: nothing is believed until the first part of a snapshot."""
    evicted: tuple[set[bytes], ...] | None = None
    """While parts of a snapshot are outstanding: what they still name but is gone, by medium."""

    @property
    def all_bits(self) -> int:
        return self.bit * _ALL_MEDIA

    @property
    def num_evicted(self) -> int:
        return 0 if self.evicted is None else sum(map(len, self.evicted))


class PrefixIndex:
    """Key to engines; the least recently used keys are forgotten beyond ``max_bytes``.

    An engine is known from its first message until ``forget``. Its owner must not pass on what
    comes from a connection that was given up: that would make it known again.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._table = KeyTable()
        self._engines: dict[str, _Engine] = {}
        self._place_of: dict[int, tuple[str, Medium]] = {}
        """By bit."""
        self._live_bits = 0
        """The first one of each engine."""
        self._num_evicted = 0
        """Of all engines, while parts of their snapshots are outstanding."""
        self._sent = SentPrefixes()
        self._fit()

    def __len__(self) -> int:
        return len(self._table)

    @property
    def num_bytes(self) -> int:
        """At most so much is taken: by what engines hold or took back, and by what was sent."""
        return len(self._table) * self._bytes_per_key + self._num_other_bytes

    def match(self, keys: Sequence[bytes]) -> dict[str, HeldKeys]:
        """What each engine holds of ``keys``; those that hold nothing of it are left out.

        What was sent to an engine counts as held by its accelerator.
        """
        accelerators = self._live_bits
        hosts = accelerators << Medium.HOST
        going_on = accelerators * _ALL_MEDIA
        """Of each engine: by reaching so far, it holds all keys until now."""
        matching: dict[str, list[int]] = {}
        num_held = 0
        for bits, num_keys in self._table.runs(keys, self._sent.bits_of):
            # Who reaches for the host has what is on the accelerator, too; and so on.
            reached = bits | (bits & accelerators) << 1
            reached |= (reached & hosts) << 1
            ended = going_on & ~reached
            if ended:
                if num_held:
                    self._note(matching, ended, num_held)
                going_on ^= ended
                if not going_on:
                    break
            num_held += num_keys
        if num_held:
            self._note(matching, going_on, num_held)
        return {id_: HeldKeys(*nums) for id_, nums in matching.items()}

    def num_confirmed(
        self, engine_id: str, keys: Sequence[bytes], reach: Medium = Medium.ACCELERATOR
    ) -> int:
        """How many of ``keys`` the engine holds without a gap as far as ``reach``, by what it said
        itself.
        """
        engine = self._engines.get(engine_id)
        if engine is None:
            return 0
        bits_up_to_reach = engine.bit * ((2 << reach) - 1)
        return self._table.num_with(bits_up_to_reach, keys)

    def count_send(
        self,
        engine_id: str,
        request_id: str,
        keys: Sequence[bytes],
        reach: Medium = Medium.ACCELERATOR,
    ) -> None:
        """A request with ``keys`` was sent to the engine, which will soon have them on its
        accelerator; what it holds as far as ``reach`` it is to take from there.
        """
        bit = self._engine(engine_id).bit
        num_confirmed = self.num_confirmed(engine_id, keys, reach)
        self._sent.add(bit, request_id, keys, num_confirmed, reach)
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
        """Take in what a medium of ``engine_id`` gained and lost.

        Returns whether a snapshot must be asked for: events were missed, all is forgotten.
        """
        engine = self._engine(engine_id)
        if engine.is_lost:
            return False  # the snapshot that was asked for says all of it
        if engine.sequence is not None and events.sequence != engine.sequence + 1:
            self._renew(engine_id).is_lost = True
            return True
        engine.sequence = events.sequence
        bit = engine.bit << events.medium
        self._table.remove(bit, events.evicted)
        self._sent.note_evicted(engine.bit, events.evicted, events.medium)
        if engine.evicted is not None and not self._note_evicted_meanwhile(engine, events):
            self._renew(engine_id).is_lost = True
            return True
        self._table.add(bit, events.stored)
        self._table.sweep_on(len(events.stored) + len(events.evicted))
        return False

    def seed(self, engine_id: str, snapshot: CacheSnapshot) -> bool:
        """Take in all that the engine holds, or a part of it.

        Returns whether another one must be asked for: the parts do not belong together.
        """
        if snapshot.is_first:
            engine = self._renew(engine_id)
            engine.sequence = snapshot.sequence
            engine.evicted = tuple(set() for _ in Medium)
        else:
            engine = self._engine(engine_id)
            if engine.is_lost:
                return False  # the rest of a snapshot that was given up
            if engine.evicted is None:
                self._renew(engine_id).is_lost = True
                return True
        assert engine.evicted is not None
        gone = engine.evicted[snapshot.medium]
        bit = engine.bit << snapshot.medium
        self._table.add(bit, (key for key in snapshot.keys if key not in gone))
        if snapshot.is_last:
            self._end_snapshot(engine)
        self._table.sweep_on(len(snapshot.keys))
        return False

    def forget(self, engine_id: str) -> None:
        """The engine left: nothing of it counts from now on."""
        engine = self._engines.pop(engine_id, None)
        if engine is not None:
            self._sent.forget(engine.bit)
            self._retire(engine)

    def resize(self, max_bytes: int) -> None:
        """Take at most ``max_bytes`` from now on."""
        self._max_bytes = max_bytes
        self._fit()

    def check_integrity(self) -> None:
        """Bits, engines and bounds agree. For tests."""
        assert self._live_bits == sum(engine.bit for engine in self._engines.values())
        assert self._place_of == {
            engine.bit << medium: (id_, medium)
            for id_, engine in self._engines.items()
            for medium in Medium
        }
        assert self._num_evicted == sum(engine.num_evicted for engine in self._engines.values())
        assert self.num_bytes <= self._max_bytes or len(self) <= 1, "more bytes than allowed"
        self._table.check_integrity(self._live_bits * _ALL_MEDIA)
        self._sent.check_integrity(self._live_bits)

    def _note(self, matching: dict[str, list[int]], bits: int, num_held: int) -> None:
        place_of = self._place_of
        while bits:
            bit = bits & -bits
            engine_id, medium = place_of[bit]
            if engine_id in matching:
                matching[engine_id][medium] = num_held
            else:
                matching[engine_id] = [0] * medium + [num_held] + [0] * (Medium.DISK - medium)
            bits ^= bit

    def _engine(self, engine_id: str) -> _Engine:
        engine = self._engines.get(engine_id)
        return self._enter(engine_id) if engine is None else engine

    def _enter(self, engine_id: str) -> _Engine:
        in_use = self._bits_in_use
        bit = ~in_use & (in_use + 1)  # the lowest one that is free, and so are all of its engine
        self._live_bits |= bit
        for medium in Medium:
            self._place_of[bit << medium] = engine_id, medium
        self._fit()
        engine = self._engines[engine_id] = _Engine(bit)
        return engine

    def _renew(self, engine_id: str) -> _Engine:
        """Forget what the engine said; what was sent to it still counts."""
        before = self._engines.pop(engine_id, None)
        engine = self._enter(engine_id)
        if before is not None:
            self._sent.move(before.bit, engine.bit)
            self._retire(before)
        return engine

    def _retire(self, engine: _Engine) -> None:
        self._end_snapshot(engine)
        self._live_bits &= ~engine.bit
        for medium in Medium:
            del self._place_of[engine.bit << medium]
        self._table.retire(engine.all_bits)

    def _note_evicted_meanwhile(self, engine: _Engine, events: CacheEvents) -> bool:
        """Whether that is little enough to wait for the rest of the snapshot."""
        assert engine.evicted is not None
        num_before = engine.num_evicted
        gone = engine.evicted[events.medium]
        gone.update(filter(is_key, events.evicted))
        gone.difference_update(events.stored)
        self._num_evicted += engine.num_evicted - num_before
        self._fit()
        return engine.num_evicted <= _MAX_EVICTED_MEANWHILE

    def _end_snapshot(self, engine: _Engine) -> None:
        if engine.evicted is not None:
            self._num_evicted -= engine.num_evicted
            engine.evicted = None
            self._fit()

    @property
    def _bits_in_use(self) -> int:
        return self._live_bits * _ALL_MEDIA | self._table.retired_bits

    @property
    def _bytes_per_key(self) -> int:
        num_words = self._bits_in_use.bit_length() // _BITS_PER_WORD
        return BYTES_PER_KEY + num_words * _BYTES_PER_WORD

    @property
    def _num_other_bytes(self) -> int:
        return self._sent.num_bytes + self._num_evicted * _BYTES_PER_EVICTED

    def _fit(self) -> None:
        """Keys, or what they and all else take, have changed: keep within the bound."""
        num_left_bytes = self._max_bytes - self._num_other_bytes
        self._table.fit(max(1, num_left_bytes // self._bytes_per_key))
