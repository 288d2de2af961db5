"""The map from chained block keys to the blocks that hold their KV, and its events for routers.

A key stands for all tokens since the start of the prompt. Each KV group holds a block of its own
per key; behind a sliding window old blocks are of no use, so that a prefix is found as soon as the
window before its end is there. Must not know reference counts, tokens or sequences.
"""

from collections.abc import Iterable, Iterator
from itertools import count, takewhile
from operator import attrgetter
from typing import NamedTuple

from cache_tiers.keys import BlockKey
from engine.kv_geometry import KvGeometry
from engine.messages import KEY_STRIDE, CacheEvents
from engine.step import NO_BLOCK


class CachedBlock(NamedTuple):
    """What a block holds."""

    key: BlockKey
    group: int
    chain_len: int
    """Blocks from the start of the prompt to this one, itself included."""


BY_CHAIN_LEN = attrgetter("chain_len")


def num_passed_blocks(window: int | None, position: int, block_size: int) -> int:
    """Leading blocks that the token at ``position`` and later ones cannot see."""
    if window is None:
        return 0
    return max(0, position - window + 1) // block_size


class PrefixCache:
    """Owner of the key maps. ``_block_of`` is the truth; the reverse map is derived from it."""

    def __init__(
        self,
        geometry: KvGeometry,
        *,
        key_stride: int = KEY_STRIDE,
        event_numbers: Iterator[int] | None = None,
    ) -> None:
        """``key_stride``: routers are told of every so manieth key of a chain; ``event_numbers``
        counts the events of the replica, where other media have some, too.
        """
        self._block_size = geometry.block_size_tokens
        self._key_stride = key_stride
        self._windows = [group.window for group in geometry.groups]
        self._block_of: list[dict[BlockKey, int]] = [{} for _ in self._windows]
        """Per KV group."""
        self._full = [
            blocks
            for blocks, window in zip(self._block_of, self._windows, strict=True)
            if window is None
        ]
        self._sliding = [
            (blocks, window)
            for blocks, window in zip(self._block_of, self._windows, strict=True)
            if window is not None
        ]
        self._announced = self._full or self._block_of
        """Routers are told of a key that all of these hold: what a window has passed is no loss."""
        self._content: dict[int, CachedBlock] = {}
        self._uncommitted: list[CachedBlock] = []
        self._announced_keys: set[BlockKey] = set()
        """What routers know by the events taken so far."""
        self._touched: dict[BlockKey, None] = {}
        """Keys that may have come or gone since."""
        self._event_numbers = event_numbers or count(1)

    @property
    def announced_keys(self) -> frozenset[BlockKey]:
        return frozenset(self._announced_keys)

    @property
    def block_ids(self) -> Iterable[int]:
        return self._content.keys()

    @property
    def keys(self) -> list[BlockKey]:
        """Of the first group; in the order of insertion."""
        return list(self._block_of[0])

    def match(self, keys: Iterable[BlockKey], num_tokens: int) -> list[list[int]]:
        """Block tables of the longest cached prefix of the chain ``keys``, all equally long.

        Position ``num_tokens - 1`` is computed in any case, so that windows reach back from there
        at the latest.
        """
        prefix = self._find(keys, num_tokens)
        position = min(len(prefix) * self._block_size, num_tokens - 1)
        tables = []
        for blocks, window in zip(self._block_of, self._windows, strict=True):
            num_passed = num_passed_blocks(window, position, self._block_size)
            table = [NO_BLOCK] * num_passed
            table += [blocks[key] for key in prefix[num_passed:]]
            tables.append(table)
        return tables

    def insert(self, key: BlockKey, group: int, block_id: int, chain_len: int) -> bool:
        """Make a computed block addressable; ``False`` if another block holds this key already."""
        blocks = self._block_of[group]
        if key in blocks:
            return False
        content = CachedBlock(key, group, chain_len)
        # Noted before it is done, so that a rollback finds it wherever this is interrupted.
        self._uncommitted.append(content)
        if chain_len % self._key_stride == 0:
            self._touched.pop(key, None)  # or it would not stand behind the keys of its chain
            self._touched[key] = None
        blocks[key] = block_id
        self._content[block_id] = content
        return True

    def contents(self, block_ids: Iterable[int]) -> list[CachedBlock]:
        """Of blocks that are cached."""
        content = self._content
        return [content[block_id] for block_id in block_ids]

    def find(self, key: BlockKey) -> tuple[int, CachedBlock] | None:
        """The first group's block of ``key``."""
        block_id = self._block_of[0].get(key)
        return None if block_id is None else (block_id, self._content[block_id])

    def evict(self, block_id: int) -> CachedBlock:
        """Forget a block whose memory is handed out again; returns what it held."""
        content = self._content[block_id]
        self._remove(content)
        del self._content[block_id]
        return content

    def commit(self) -> None:
        """The step that inserted blocks is complete: they stay."""
        self._uncommitted.clear()

    def rollback(self) -> None:
        """Forget what was inserted since the last commit, from whatever state a failure left."""
        for content in self._uncommitted:
            if content.key in self._block_of[content.group]:
                self._remove(content)
        self._uncommitted.clear()
        kept = self._content
        self._content = {
            block_id: kept[block_id] for blocks in self._block_of for block_id in blocks.values()
        }

    def take_events(self) -> CacheEvents | None:
        """What changed since the last call; a key that came and went, or went and came, did not."""
        if not self._touched:
            return None
        stored: list[bytes] = []
        evicted: list[bytes] = []
        for key in self._touched:
            is_held, was_held = self._is_held(key), key in self._announced_keys
            if is_held and not was_held:
                self._announced_keys.add(key)
                stored.append(key)
            elif was_held and not is_held:
                self._announced_keys.discard(key)
                evicted.append(key)
        self._touched.clear()
        if not stored and not evicted:
            return None
        return CacheEvents(next(self._event_numbers), stored, evicted)

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless keys and blocks map one to one."""
        derived = {
            (block_id, key, group)
            for group, blocks in enumerate(self._block_of)
            for key, block_id in blocks.items()
        }
        contents = {(block_id, c.key, c.group) for block_id, c in self._content.items()}
        assert derived == contents, "the reverse map differs from the key maps"
        assert len(contents) == sum(map(len, self._block_of)), "two keys share a block"
        assert not self._uncommitted, "blocks of an unfinished step are addressable"

    def _find(self, keys: Iterable[BlockKey], num_tokens: int) -> list[BlockKey]:
        """The keys of the longest prefix that is a hit in every group."""
        for blocks in self._full:
            keys = takewhile(blocks.__contains__, keys)
        prefix = list(keys)
        if self._sliding:
            del prefix[self._num_in_windows(prefix, num_tokens) :]
        return prefix

    def _num_in_windows(self, prefix: list[BlockKey], num_tokens: int) -> int:
        """The longest part of ``prefix`` from whose end all windows reach back over cached blocks
        only. Looks from the end, at no block of a group twice.
        """
        num_hit = len(prefix)
        run_starts = [num_hit] * len(self._sliding)
        """Per group: its blocks from here to ``num_hit`` are there."""
        while True:
            position = min(num_hit * self._block_size, num_tokens - 1)
            for number, (blocks, window) in enumerate(self._sliding):
                num_passed = num_passed_blocks(window, position, self._block_size)
                start = min(run_starts[number], num_hit)
                while start > num_passed and prefix[start - 1] in blocks:
                    start -= 1
                run_starts[number] = start
                if start > num_passed:
                    num_hit = start - 1  # up to the block that is missing
                    break
            else:
                return num_hit

    def _remove(self, content: CachedBlock) -> None:
        key, group, chain_len = content
        if chain_len % self._key_stride == 0:
            self._touched[key] = None
        del self._block_of[group][key]

    def _is_held(self, key: BlockKey) -> bool:
        """Whether all groups that routers are told of hold a block of ``key``."""
        return all(key in blocks for blocks in self._announced)
