"""How often keys were used lately, in 6 to 12 bytes a block: a count-min sketch that forgets.

TinyLFU's (Einziger et al., "TinyLFU: A Highly Efficient Cache Admission Policy", 2017): counters
are halved after a number of uses. Must not know what is held.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9)
_MULTIPLIERS = np.array(_FACTORS, np.uint64)
_MASK = (1 << 64) - 1
_COUNTERS_PER_KEY = 2
"""In each row: most keys that pass by are never held."""
_USES_PER_COUNTER = 10
"""Before all are halved; the paper's."""
_MAX_COUNT = 255


class FrequencySketch:
    """Of about ``num_keys`` keys at a time; those of 16 bytes."""

    def __init__(self, num_keys: int) -> None:
        self._num_bits = max(6, (_COUNTERS_PER_KEY * max(1, num_keys) - 1).bit_length())
        self._width = 1 << self._num_bits
        self._counters = np.zeros((len(_MULTIPLIERS), self._width), np.uint8)
        self._num_uses = 0

    def add(self, keys: Sequence[bytes]) -> list[int]:
        """Count a use of each; how often they were used, this time included. No key twice."""
        if not keys:
            return []
        rows = np.arange(len(_MULTIPLIERS))[:, None]
        columns = self._columns(keys)  # [num_rows, num_keys]
        before = self._counters[rows, columns]
        count = np.minimum(before.min(axis=0), _MAX_COUNT - 1) + np.uint8(1)
        # Only the lowest counters rise: the others were raised by other keys.
        self._counters[rows, columns] = np.maximum(before, count)
        self._num_uses += len(keys)
        if self._num_uses >= _USES_PER_COUNTER * self._width:
            self._num_uses = 0
            self._counters >>= 1
        counts: list[int] = count.tolist()
        return counts

    def estimate(self, key: bytes) -> int:
        """At least how often it was used, if nothing has been forgotten since."""
        # As ``_columns``, which for one key would take ten times as long.
        mixed = int.from_bytes(key[:8], "little") * _FACTORS[0]
        mixed = (mixed + int.from_bytes(key[8:], "little") * _FACTORS[1]) & _MASK
        mixed ^= mixed >> 32
        shift = 64 - self._num_bits
        columns = [(mixed * factor & _MASK) >> shift for factor in _FACTORS]
        return min(map(int, map(self._counters.__getitem__, enumerate(columns))))

    def _columns(self, keys: Sequence[bytes]) -> NDArray[np.uint64]:
        halves = np.frombuffer(b"".join(keys), "<u8").astype(np.uint64, copy=False).reshape(-1, 2)
        mixed = halves[:, 0] * _MULTIPLIERS[0] + halves[:, 1] * _MULTIPLIERS[1]
        mixed ^= mixed >> np.uint64(32)
        columns: NDArray[np.uint64] = mixed * _MULTIPLIERS[:, None] >> np.uint64(
            64 - self._num_bits
        )
        return columns
