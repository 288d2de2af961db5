"""The prefixes that come again and again, whole: what a new engine should begin with.

Counts how often the index's keys were the part of a prompt that some engine held already, and keeps
tokens and keys of those that are worth most: reuse times what computing them costs. Bounded; what
does not come again is forgotten. Takes time as an argument; must not know engines.
"""

import math
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from heapq import nlargest

from app.routing.candidate import ReplicaRates
from app.text.tokenization import Prompt
from engine.messages import KEY_STRIDE

MAX_BYTES = 16 << 20
"""Of one model's tokens and keys: some hundred prefixes of a few thousand tokens."""
_MAX_COUNTED_KEYS = 8192
"""Least recently reused keys beyond that are not counted any more."""
_MIN_REUSES = 3.0
"""Fewer are no habit yet: most sessions have ended by then."""
_HALF_LIFE_S = 300.0
_MAX_HOTTEST = 64
_TURNED_AWAY_S = 10.0
"""So long who is worth no more than one that found no room need not try."""
_BYTES_PER_TOKEN = 4
_BYTES_PER_BLOCK = 64
_BYTES_PER_PREFIX = 600


@dataclass(slots=True, eq=False)
class _Reuses:
    """Of one key; the older the less."""

    number: float = 0.0
    seen_s: float = 0.0

    def at(self, now_s: float) -> float:
        return self.number * math.exp2(-max(0.0, now_s - self.seen_s) / _HALF_LIFE_S)

    def count(self, now_s: float) -> None:
        self.number, self.seen_s = self.at(now_s) + 1.0, now_s


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class HotPrefix:
    """The beginning of many prompts, up to a key of the index."""

    token_ids: "array[int]"
    block_keys: tuple[bytes, ...]
    root_key: bytes
    card_root_key: bytes
    reuses: _Reuses

    @property
    def num_bytes(self) -> int:
        num_blocks = len(self.block_keys)
        token_bytes = len(self.token_ids) * _BYTES_PER_TOKEN
        return token_bytes + num_blocks * _BYTES_PER_BLOCK + _BYTES_PER_PREFIX

    @property
    def prompt(self) -> Prompt:
        """To send to an engine."""
        return Prompt(
            list(self.token_ids), self.root_key, list(self.block_keys), self.card_root_key
        )

    @property
    def index_keys(self) -> tuple[bytes, ...]:
        """As ``Prompt.index_keys``."""
        return self.block_keys[KEY_STRIDE - 1 :: KEY_STRIDE]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)


class HotPrefixes:
    """Of one model."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._reuses: OrderedDict[bytes, _Reuses] = OrderedDict()
        self._prefixes: dict[bytes, HotPrefix] = {}
        self._num_bytes = 0
        self._turned_away = _Reuses()
        """Of the last one that found no room."""

    def __len__(self) -> int:
        return len(self._prefixes)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def note(self, prompt: Prompt, num_keys: int, block_size_tokens: int, now_s: float) -> None:
        """The first ``num_keys`` keys of the index's of ``prompt`` were held by an engine."""
        if num_keys <= 0:
            return
        keys = prompt.index_keys[:num_keys]
        if keys[-1] not in self._reuses:
            self._reuses[keys[-1]] = _Reuses()
        hottest_depth = 0
        for depth, key in enumerate(keys, 1):
            reuses = self._reuses.get(key)
            if reuses is not None:
                reuses.count(now_s)
                self._reuses.move_to_end(key)
                if reuses.number >= _MIN_REUSES:
                    hottest_depth = depth
        hottest = keys[hottest_depth - 1]
        if hottest_depth and hottest not in self._prefixes and self._may_enter(hottest, now_s):
            self._keep(prompt, hottest_depth * KEY_STRIDE, block_size_tokens, now_s)
        while len(self._reuses) > _MAX_COUNTED_KEYS:
            self._drop(next(iter(self._reuses)))

    def hottest(self, now_s: float, rates: ReplicaRates) -> list[HotPrefix]:
        """Most valuable first, where computing takes as ``rates`` say; none within another."""
        token_s = rates.prefill_token_s or 1.0

        def value(prefix: HotPrefix) -> float:
            depth = prefix.num_tokens / 2
            compute_s = prefix.num_tokens * (token_s + rates.prefill_attended_s * depth)
            return prefix.reuses.at(now_s) * compute_s

        hot: list[HotPrefix] = []
        covered: set[bytes] = set()
        for prefix in nlargest(_MAX_HOTTEST, self._prefixes.values(), key=value):
            keys = prefix.index_keys
            if keys[-1] not in covered and prefix.reuses.at(now_s) >= 1.0:
                hot.append(prefix)
                covered.update(keys)
        return hot

    def check_integrity(self) -> None:
        """For tests."""
        assert self._num_bytes == sum(prefix.num_bytes for prefix in self._prefixes.values())
        assert self._num_bytes <= self._max_bytes
        assert self._prefixes.keys() <= self._reuses.keys()
        assert len(self._reuses) <= _MAX_COUNTED_KEYS

    def _keep(self, prompt: Prompt, num_blocks: int, block_size_tokens: int, now_s: float) -> None:
        """If it is worth more than those that it takes the place of."""
        num_tokens = num_blocks * block_size_tokens
        block_keys = prompt.block_keys[:num_blocks]
        prefix = HotPrefix(
            array("I", prompt.token_ids[:num_tokens]),
            tuple(block_keys),
            prompt.root_key,
            prompt.card_root_key,
            self._reuses[block_keys[-1]],
        )
        num_too_many = self._num_bytes + prefix.num_bytes - self._max_bytes
        victims: list[bytes] = []
        if num_too_many > 0:
            coldest = sorted(self._prefixes, key=lambda key: self._reuses[key].at(now_s))
            for key in coldest:
                if num_too_many <= 0 or self._reuses[key].at(now_s) >= prefix.reuses.number:
                    break
                victims.append(key)
                num_too_many -= self._prefixes[key].num_bytes
            if num_too_many > 0:
                self._turned_away = _Reuses(prefix.reuses.number, now_s)
                return
        for key in victims:
            self._num_bytes -= self._prefixes.pop(key).num_bytes
        self._prefixes[block_keys[-1]] = prefix
        self._num_bytes += prefix.num_bytes

    def _may_enter(self, key: bytes, now_s: float) -> bool:
        last = self._turned_away
        is_past = not 0 <= now_s - last.seen_s < _TURNED_AWAY_S
        return is_past or self._reuses[key].number > last.number

    def _drop(self, key: bytes) -> None:
        del self._reuses[key]
        prefix = self._prefixes.pop(key, None)
        if prefix is not None:
            self._num_bytes -= prefix.num_bytes
