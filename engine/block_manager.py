"""Gives sequences their KV blocks: prefix hits, growth, copy-on-write, publication, release.

Joins the block pool (who references what) with the prefix cache (what is addressable). The block
table lives in the sequence; only this module changes it. Must not know budgets, slots or runners.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from cache_tiers.keys import BlockKey, next_key
from engine.block_pool import BlockPool
from engine.messages import CacheEvents
from engine.prefix_cache import PrefixCache
from engine.sequence import Sequence
from engine.step import BlockCopy


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The cached prefix of a sequence that waits; valid until the next change of the pool."""

    block_ids: tuple[int, ...]
    num_tokens: int
    """Never the whole sequence: its last token is computed in any case, to sample from."""
    is_last_block_rewritten: bool
    """Every token is cached: computing the last one again writes its block, so that is copied."""


class BlockManager:
    """Owner of the pool and the prefix cache of one engine."""

    def __init__(self, num_blocks: int, block_size_tokens: int, *, prefix_caching: bool) -> None:
        self._block_size = block_size_tokens
        self._prefix_caching = prefix_caching
        self._cache = PrefixCache()
        self._pool = BlockPool(num_blocks, on_evict=self._cache.evict)
        self._copy_sources: list[int] = []
        """Held until the step that copies them is over: evicted earlier, they could be poisoned."""

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    def find_prefix(self, sequence: Sequence) -> PrefixHit:
        """The longest cached prefix, over the generated tokens of a preempted sequence too."""
        if not self._prefix_caching:
            return PrefixHit((), 0, is_last_block_rewritten=False)
        block_ids = tuple(self._cache.match(sequence.block_keys))
        num_hit = len(block_ids) * self._block_size
        is_whole = num_hit == len(sequence.token_ids)
        return PrefixHit(block_ids, num_hit - is_whole, is_last_block_rewritten=is_whole)

    def can_admit(self, sequence: Sequence, hit: PrefixHit, num_reserved_blocks: int) -> bool:
        """Whether all tokens of ``sequence`` fit and ``num_reserved_blocks`` stay free beside."""
        num_taken = self._num_missing_blocks(sequence, hit)
        num_taken += sum(not self._pool.is_referenced(block_id) for block_id in hit.block_ids)
        return num_taken + num_reserved_blocks <= self._pool.num_free

    def admit(self, sequence: Sequence, hit: PrefixHit) -> BlockCopy | None:
        """Fill the block table for all tokens known; the caller has asked ``can_admit``."""
        for block_id in hit.block_ids:
            self._pool.acquire(block_id)
            sequence.block_ids.append(block_id)
        copy = None
        if hit.is_last_block_rewritten:
            source = sequence.block_ids.pop()
            self._copy_sources.append(source)
            copy = BlockCopy(source, self._append_block(sequence))
        while len(sequence.block_ids) * self._block_size < len(sequence.token_ids):
            self._append_block(sequence)
        sequence.num_computed_tokens = hit.num_tokens
        sequence.num_published_blocks = len(hit.block_ids)
        return copy

    def needs_block(self, sequence: Sequence) -> bool:
        """Whether the next token of a sequence that decodes has no room in its last block."""
        return sequence.num_computed_tokens == len(sequence.block_ids) * self._block_size

    def grow(self, sequence: Sequence) -> int:
        """Append one block; the caller has checked ``num_free_blocks``."""
        return self._append_block(sequence)

    def publish(self, sequence: Sequence) -> None:
        """Make blocks that the finished step filled addressable for others."""
        num_full = sequence.num_computed_tokens // self._block_size
        if not self._prefix_caching or num_full <= sequence.num_published_blocks:
            return
        for index in range(sequence.num_published_blocks, num_full):
            block_id = sequence.block_ids[index]
            if self._cache.insert(self._key(sequence, index), block_id, index + 1):
                self._pool.mark_cached(block_id)
        sequence.num_published_blocks = num_full

    def release(self, sequence: Sequence) -> None:
        """Drop the block table, its end first: a block is no use once one before it is evicted."""
        while sequence.block_ids:
            self._pool.release(sequence.block_ids.pop())
        sequence.num_computed_tokens = 0
        sequence.num_published_blocks = 0

    def commit(self) -> None:
        """The step did what was planned: what it published stays, its copies are made."""
        self._cache.commit()
        while self._copy_sources:
            self._pool.release(self._copy_sources.pop())

    def reset(self) -> None:
        """After a failure, from any state: drop all references, keep what older steps cached."""
        self._copy_sources.clear()
        self._cache.rollback()
        self._pool.reset(self._cache.block_ids)

    def take_freed_block_ids(self) -> tuple[int, ...]:
        return self._pool.take_freed()

    def take_events(self) -> CacheEvents | None:
        return self._cache.take_events()

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise ``AssertionError`` unless pool, cache and the tables of ``sequences`` agree."""
        expected = [0] * self._pool.num_blocks
        for block_id in self._copy_sources:
            expected[block_id] += 1
        for sequence in sequences:
            assert len(set(sequence.block_ids)) == len(sequence.block_ids), (
                "a block twice in a table"
            )
            assert sequence.num_computed_tokens <= len(sequence.block_ids) * self._block_size
            for block_id in sequence.block_ids:
                expected[block_id] += 1
        self._pool.check_integrity(expected)
        self._cache.check_integrity()
        assert set(self._cache.block_ids) == self._pool.cached_block_ids, "cache and pool disagree"

    def _num_missing_blocks(self, sequence: Sequence, hit: PrefixHit) -> int:
        num_blocks = -(-len(sequence.token_ids) // self._block_size)
        return num_blocks - len(hit.block_ids) + hit.is_last_block_rewritten

    def _append_block(self, sequence: Sequence) -> int:
        block_id = self._pool.allocate()
        sequence.block_ids.append(block_id)
        return block_id

    def _key(self, sequence: Sequence, index: int) -> BlockKey:
        keys = sequence.block_keys
        while len(keys) <= index:
            start = len(keys) * self._block_size
            parent = keys[-1] if keys else BlockKey(sequence.request.root_key)
            keys.append(next_key(parent, sequence.token_ids[start : start + self._block_size]))
        return keys[index]
