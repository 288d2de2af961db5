"""How soon blocks are used again, learned from when others like them were.

Blocks are alike when they were used about as often. Of every so manieth key each use is remembered,
whether it is held or not, so that what a tier evicts doesn't hide when it would have been used. The
figure of a block is its Gittins index (see Aalto et al., "On the Gittins index in the M/G/1 queue",
2009): the most uses per second of holding it that any span of time ahead gives. Where the next use
grows less likely with age that is the rate of uses at its age; where it grows more likely first, a
pause that is usual doesn't count against a block. Must not know tiers, costs or sizes.
"""

import itertools
import math
from collections import OrderedDict
from collections.abc import Sequence

_MAX_SAMPLED = 4096
_HISTORY_PER_BLOCK = 4
"""Keys are remembered about so many times as long as they could be held."""
_NUM_BUCKETS = 36
"""Of ages, two for a doubling: the last begins after two days."""
_EDGES_S = [0.0, *(2.0 ** (i / 2) for i in range(_NUM_BUCKETS))]
_WIDTHS_S = [end - begin for begin, end in itertools.pairwise(_EDGES_S)]
_NUM_CLASSES = 5
MAX_CLASS = _NUM_CLASSES - 1
"""Of blocks that were used 16 times or more."""
_USES_PER_FIT = 1024
_DECAY_PER_FIT = 0.9
_PRIOR_BLOCKS = 20.0
"""Of each class and age, with a rate of uses that falls as one over the age: then LRU is right."""
_NEGLIGIBLE = 1e-3


_CLASSES = [min(_NUM_CLASSES, max(1, num_uses).bit_length()) - 1 for num_uses in range(256)]


def reuse_class(num_uses: int) -> int:
    """0 for a block that was used once, then one more for a doubling."""
    return _CLASSES[num_uses] if num_uses < 256 else MAX_CLASS


class ReuseModel:
    """Owner: one node's cache, of about ``capacity`` blocks."""

    def __init__(self, capacity: int) -> None:
        num_history = max(1, capacity * _HISTORY_PER_BLOCK)
        num_bits = max(0, math.ceil(math.log2(num_history / _MAX_SAMPLED)))
        self._mask = (1 << min(16, num_bits)) - 1
        self._max_sampled = max(1, num_history >> num_bits)
        self._last_uses: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        """Of sampled keys: class and time, the one used longest ago first."""
        self._num_since_fit = 0
        self._num_used = _zeros()
        """By class and age: used again then."""
        self._num_lost = _zeros()
        """And not used again before they were forgotten, which was then."""
        self._rates = [_prior_rates() for _ in range(_NUM_CLASSES)]

    def record(self, keys: Sequence[bytes], counts: Sequence[int], now_s: float) -> None:
        """Each was used, for the time that ``counts`` says."""
        mask = self._mask
        for key, count in zip(keys, counts, strict=True):
            if (key[-1] | key[-2] << 8) & mask:
                continue
            before = self._last_uses.pop(key, None)
            if before is not None:
                self._num_used[before[0]][_bucket(now_s - before[1])] += 1
            self._last_uses[key] = (reuse_class(count), now_s)
            self._num_since_fit += 1
        while len(self._last_uses) > self._max_sampled:
            _, (number, used_s) = self._last_uses.popitem(last=False)
            self._num_lost[number][_bucket(now_s - used_s)] += 1
        if self._num_since_fit >= _USES_PER_FIT:
            self._num_since_fit = 0
            self._fit(now_s)

    def uses_per_s(self, number: int, age_s: float) -> float:
        """Of a block of class ``number`` that was used ``age_s`` ago."""
        return self._rates[number][_bucket(age_s)]

    def _fit(self, now_s: float) -> None:
        waiting = _zeros()
        for number, used_s in self._last_uses.values():
            waiting[number][_bucket(now_s - used_s)] += 1
        for number in range(_NUM_CLASSES):
            used, lost = self._num_used[number], self._num_lost[number]
            ended = [sum(parts) for parts in zip(used, lost, waiting[number], strict=True)]
            self._rates[number] = _gittins(_hazards(used, ended))
            self._num_used[number] = [count * _DECAY_PER_FIT for count in used]
            self._num_lost[number] = [count * _DECAY_PER_FIT for count in lost]


def _zeros() -> list[list[float]]:
    return [[0.0] * _NUM_BUCKETS for _ in range(_NUM_CLASSES)]


def _bucket(age_s: float) -> int:
    return 0 if age_s < 1 else min(_NUM_BUCKETS - 1, 1 + int(2 * math.log2(age_s)))


def _hazards(used: Sequence[float], ended: Sequence[float]) -> list[float]:
    """Uses per second of those that reach an age: uses over the time spent at it."""
    rates = [0.0] * _NUM_BUCKETS
    num_older = 0.0
    for bucket in reversed(range(_NUM_BUCKETS)):
        width_s = _WIDTHS_S[bucket]
        spent_s = (num_older + 0.5 * ended[bucket]) * width_s
        prior_rate = 0.5 / (_EDGES_S[bucket] + width_s)
        prior_s = _PRIOR_BLOCKS * width_s
        rates[bucket] = (used[bucket] + prior_rate * prior_s) / (spent_s + prior_s)
        num_older += ended[bucket]
    return rates


def _gittins(hazards: Sequence[float]) -> list[float]:
    indices = []
    for first in range(_NUM_BUCKETS):
        survival, num_uses, held_s, best = 1.0, 0.0, 0.0, 0.0
        for bucket in range(first, _NUM_BUCKETS):
            left = survival * math.exp(-hazards[bucket] * _WIDTHS_S[bucket])
            num_uses += survival - left
            held_s += (survival - left) / hazards[bucket]
            survival = left
            best = max(best, num_uses / held_s)
            if survival < _NEGLIGIBLE:
                break
        indices.append(best)
    return indices


def _prior_rates() -> list[float]:
    return [1.0 / end_s for end_s in _EDGES_S[1:]]
