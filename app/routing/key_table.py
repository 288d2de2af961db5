"""Keys and the bits that stand for whoever holds them. Knows no engines and no media.

Keys live in two generations. A used key moves to the young one; when that is half of the bound, the
old one is dropped: nothing of the most recently used half is ever lost, and no order is kept.

A bit that is retired means nothing from then on, but is set in keys until a sweep has passed over
them, which goes on by slices whenever something is learned: it never holds up the loop.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from cache_tiers.keys import KEY_BYTES

_SWEPT_PER_KEY = 4
_SWEPT_PER_CALL = 64


@dataclass(slots=True, eq=False)
class _Sweep:
    """Removes retired bits from the keys there were when it began."""

    bits: int
    keys: list[bytes] = field(default_factory=list)


class KeyTable:
    """Key to bits, of at most so many keys."""

    def __init__(self) -> None:
        self._max_generation_keys = 1
        self._young: dict[bytes, int] = {}
        self._old: dict[bytes, int] = {}
        self._retired_bits = 0
        """Not to be used again before a sweep that began after they were retired."""
        self._sweep: _Sweep | None = None

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    @property
    def retired_bits(self) -> int:
        """Those that some key may still have."""
        return self._retired_bits | (0 if self._sweep is None else self._sweep.bits)

    def runs(self, keys: Sequence[bytes], more: Mapping[bytes, int]) -> Iterator[tuple[int, int]]:
        """``(bits, number of keys)`` for ``keys`` that follow each other and have the same bits,
        with those that ``more`` has for them; up to the first that has none. They count as used.
        """
        # Plain tuples: where bits change with every key, named ones would double the time.
        young = self._young
        run_bits = run_begin = position = 0
        for position, key in enumerate(keys):
            bits = young.get(key)
            if bits is None:
                bits = self._use_old(key)
                young = self._young
            if more:
                bits |= more.get(key, 0)
            if bits != run_bits:
                if position > run_begin:
                    yield run_bits, position - run_begin
                if not bits:
                    return
                run_bits, run_begin = bits, position
            elif not bits:
                return
        if run_bits:
            yield run_bits, position + 1 - run_begin

    def num_with(self, bits: int, keys: Sequence[bytes]) -> int:
        """How many of the first ``keys`` have one of ``bits``, up to the first that has none. They
        count as used.
        """
        young = self._young
        for position, key in enumerate(keys):
            found = young.get(key)
            if found is None:
                found = self._use_old(key)
                young = self._young
            if not found & bits:
                return position
        return len(keys)

    def add(self, bit: int, keys: Iterable[bytes]) -> None:
        """``keys`` have the bit from now on; what is no key is left out."""
        young, old = self._young, self._old
        for key in filter(is_key, keys):
            bits = young.get(key)
            if bits is None:
                bits = old.pop(key, 0)
            young[key] = bits | bit
            if len(young) >= self._max_generation_keys:
                self._turn()
                young, old = self._young, self._old

    def remove(self, bits: int, keys: Iterable[bytes]) -> None:
        """``keys`` have none of the bits any more."""
        for key in keys:
            self._remove(bits, key)

    def retire(self, bits: int) -> None:
        """No key counts as having them."""
        self._retired_bits |= bits

    def sweep_on(self, num_keys: int) -> None:
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

    def fit(self, max_keys: int) -> None:
        """Keep at most so many, which is at least one."""
        self._max_generation_keys = max(1, max_keys // 2)
        if len(self._young) >= self._max_generation_keys:
            self._turn()
        num_excess = len(self._old) - self._max_generation_keys
        for key in list(islice(self._old, max(0, num_excess))):
            del self._old[key]

    def check_integrity(self, live_bits: int) -> None:
        """Nobody has other bits than ``live_bits``, but for retired ones. For tests."""
        assert not live_bits & self.retired_bits
        assert not self._young.keys() & self._old.keys(), "a key of two generations"
        assert len(self._young) < self._max_generation_keys
        assert len(self._old) <= self._max_generation_keys
        assert all(map(is_key, (*self._young, *self._old)))
        known_bits = live_bits | self.retired_bits
        for bits in (*self._young.values(), *self._old.values()):
            assert bits, "a key without a holder is kept"
            assert not bits & ~known_bits, "a bit that is free is still in use"

    def _remove(self, bits: int, key: bytes) -> None:
        for generation in (self._young, self._old):
            before = generation.get(key)
            if before is not None:
                if before & ~bits:
                    generation[key] = before & ~bits
                else:
                    del generation[key]
                return

    def _use_old(self, key: bytes) -> int:
        """The bits of a key that is not young, and is so from now on."""
        bits = self._old.pop(key, 0)
        if bits:
            self._young[key] = bits
            if len(self._young) >= self._max_generation_keys:
                self._turn()
        return bits

    def _turn(self) -> None:
        """The young generation is full: it becomes the old one, whose keys are forgotten."""
        self._old = self._young
        self._young = {}


def is_key(key: bytes) -> bool:
    """Whoever sends something else is no engine of ours, and might send something large."""
    return len(key) == KEY_BYTES
