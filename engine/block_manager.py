"""Gives sequences their KV blocks: prefix hits, growth, sharing, copy-on-write, sliding windows,
publication, release.

Joins the block pool (who references what) with the prefix cache (what is addressable). The block
tables live in the sequence; only this module changes them. Must not know budgets, slots or runners.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import cast

from cache_tiers.keys import BlockKey
from cache_tiers.messages import Found
from engine.block_pool import BlockPool
from engine.kv_geometry import KvGeometry
from engine.messages import KEY_STRIDE, CacheEvents
from engine.prefix_cache import CachedBlock, PrefixCache, num_passed_blocks
from engine.sequence import Sequence
from engine.step import NO_BLOCK, BlockCopy, TableUpdate
from engine.write_policy import BlockWriter, HeldBlock


@dataclass(frozen=True, slots=True)
class PrefixHit:
    """The prefix of a sequence that waits, as far as its KV is there; valid until the next change
    of the pool.
    """

    block_tables: tuple[list[int], ...]
    """Per KV group, equally long; ``NO_BLOCK`` where no later token looks."""
    num_tokens: int
    """Never the whole sequence: its last token is computed in any case, to sample from. When all
    are cached, computing it writes to a cached block, so that is copied.
    """
    num_held_tokens: int
    """Of them, those in ``block_tables``."""
    images: tuple[Found, ...] = ()
    """What follows in the arena, each to be loaded into a block of its own; a partial one last."""
    check: Found | None = None
    """The image after them, which is computed all the same, to compare."""


class BlockManager:
    """Owner of the pool and the prefix cache of one engine."""

    def __init__(
        self,
        num_blocks: int,
        geometry: KvGeometry,
        *,
        prefix_caching: bool,
        key_stride: int = KEY_STRIDE,
        event_numbers: Iterator[int] | None = None,
        writer: BlockWriter | None = None,
    ) -> None:
        """``key_stride`` and ``event_numbers``: see ``PrefixCache``. ``writer`` is told what is
        evicted and what is used again, where there are tiers to keep it.
        """
        self.geometry = geometry
        self._block_size = geometry.block_size_tokens
        self._windows = [group.window for group in geometry.groups]
        self._sliding = [
            (group, window) for group, window in enumerate(self._windows) if window is not None
        ]
        self._prefix_caching = prefix_caching
        self._cache = PrefixCache(geometry, key_stride=key_stride, event_numbers=event_numbers)
        self._writer = writer
        self._pool = BlockPool(num_blocks, on_evict=self._evict)
        self._last_holders = [""] * num_blocks
        """Request ids, of who took each block last."""
        self._copy_sources: Counter[int] = Counter()
        """Held until the step that copies them is over: evicted earlier, they could be poisoned."""

    @property
    def block_size(self) -> int:
        return self._block_size

    @property
    def windows(self) -> list[int | None]:
        """Per KV group."""
        return self._windows

    @property
    def num_groups(self) -> int:
        return len(self._windows)

    @property
    def num_blocks(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free_blocks(self) -> int:
        return self._pool.num_free

    @property
    def num_empty_blocks(self) -> int:
        """Free blocks that hold no prefix."""
        return self._pool.num_empty

    def num_references(self, block_id: int) -> int:
        return self._pool.num_references(block_id)

    def differing_references(self, expected: list[int], begin: int, end: int) -> list[int]:
        """Blocks of ``[begin, end)`` that are not referenced as often as ``expected`` says."""
        return self._pool.differing_references(expected, begin, end)

    def last_holder(self, block_id: int) -> str:
        """Id of the request that took the block last; empty if nobody did."""
        return self._last_holders[block_id]

    @property
    def announced_keys(self) -> frozenset[BlockKey]:
        """What routers know by the events taken so far."""
        return self._cache.announced_keys

    @property
    def no_hit(self) -> PrefixHit:
        return PrefixHit(tuple([] for _ in self._windows), 0, 0)

    def find_prefix(self, sequence: Sequence) -> PrefixHit:
        """The longest cached prefix, over the generated tokens of a preempted sequence too, and the
        images that go on where it ends.
        """
        if not self._prefix_caching or sequence.needs_prompt_logprobs:
            return self.no_hit
        num_tokens = sequence.num_tokens
        tables = self._cache.match(sequence.block_keys, num_tokens)
        num_held = min(len(tables[0]) * self._block_size, num_tokens - 1)
        if sequence.restore is None:
            return PrefixHit(tuple(tables), num_held, num_held)
        keys = islice(sequence.block_keys, len(tables[0]), None)
        images = sequence.restore.usable(keys, len(tables[0]))
        check = images.pop() if images and sequence.restore.is_checked else None
        num_hit = len(tables[0]) * self._block_size + sum([i.num_tokens for i in images])
        return PrefixHit(
            tuple(tables), min(num_hit, num_tokens - 1), num_held, tuple(images), check
        )

    def num_held_blocks(self, sequence: Sequence) -> int:
        """Leading full blocks of the prompt that are cached. Without windows."""
        prompt_keys = cast("list[BlockKey]", sequence.request.block_keys)
        return len(self._cache.match(prompt_keys, sequence.num_tokens)[0])

    def find_block(self, key: bytes) -> HeldBlock | None:
        """The block with the KV of ``key``. Of models with one KV group."""
        found = self._cache.find(BlockKey(key))
        return None if found is None else HeldBlock(found[0], found[1].chain_len)

    def next_evicted(self, num_blocks: int) -> list[CachedBlock]:
        """What would be evicted if so many blocks were handed out now, in order."""
        return self._cache.contents(self._pool.next_evicted(num_blocks))

    @property
    def kept_keys(self) -> list[BlockKey]:
        """Keys of all cached blocks."""
        return self._cache.keys

    def num_admission_blocks(self, sequence: Sequence, hit: PrefixHit, *, chunk_tokens: int) -> int:
        """Free blocks that ``sequence`` takes until all its tokens are computed.

        Behind a sliding window that is what it holds at most while it is computed in chunks of up
        to ``chunk_tokens``.
        """
        num_blocks = self._num_blocks(sequence.num_tokens)
        num_taken = 0
        if hit.num_tokens < len(hit.block_tables[0]) * self._block_size:
            num_taken += len(self._windows)  # a copy in each group
        for table, window in zip(hit.block_tables, self._windows, strict=True):
            num_passed = num_passed_blocks(window, hit.num_tokens, self._block_size)
            most = num_blocks - num_passed
            if window is not None:
                # A chunk and the window before it may begin and end amid a block.
                most = min(most, self._num_blocks(window + chunk_tokens - 2) + 1)
            held = table[num_passed:]
            num_taken += max(0, most - len(held))
            num_taken += self._pool.num_unreferenced(held)
        return num_taken

    def num_freed_by(self, sequences: Iterable[Sequence]) -> int:
        """Blocks that become free when all of ``sequences`` leave; between steps."""
        num_holds = Counter(
            [block_id for s in sequences for table in s.block_tables for block_id in table]
        )
        del num_holds[NO_BLOCK]
        references = self._pool.num_references
        return sum([references(block_id) == num for block_id, num in num_holds.items()])

    def admit(self, sequence: Sequence, hit: PrefixHit) -> None:
        """Take the cached prefix, and with full attention blocks for all tokens known: nobody who
        grows can then take them away. The caller has asked for ``num_admission_blocks``.
        """
        request_id = sequence.request.request_id
        if self._writer is not None:
            self._writer.want(islice(sequence.block_keys, len(hit.block_tables[0])))
        sequence.block_tables = [list(table) for table in hit.block_tables]
        sequence.num_passed_blocks = [
            num_passed_blocks(window, hit.num_tokens, self._block_size) for window in self._windows
        ]
        for table, num_passed in zip(hit.block_tables, sequence.num_passed_blocks, strict=True):
            held = table[num_passed:]
            self._pool.acquire(held)
            for block_id in held:
                self._last_holders[block_id] = request_id
        num_blocks = self._num_blocks(sequence.num_tokens)
        for table, window in zip(sequence.block_tables, self._windows, strict=True):
            if window is None:
                table += [self._allocate(request_id) for _ in range(len(table), num_blocks)]
        sequence.num_computed_tokens = hit.num_held_tokens
        sequence.num_published_blocks = len(hit.block_tables[0])
        sequence.num_writable_tokens = 0

    def fork(self, parent: Sequence, children: list[Sequence]) -> None:
        """Let ``children`` share all blocks of ``parent``; who writes to a shared one copies it."""
        for table, num_passed in zip(parent.block_tables, parent.num_passed_blocks, strict=True):
            self._pool.share(table[num_passed:], len(children))
        for child in children:
            child.block_tables = [table.copy() for table in parent.block_tables]
            child.num_passed_blocks = parent.num_passed_blocks.copy()
            child.num_writable_tokens = 0
        parent.num_writable_tokens = 0

    def drop_passed(self, sequence: Sequence) -> tuple[TableUpdate, ...]:
        """Give up the blocks that no token after those computed can see.

        Due before ``extend``: in between, a sequence holds no more than it held there.
        """
        if not self._sliding:
            return ()
        updates: list[TableUpdate] = []
        for group, window in self._sliding:
            begin = sequence.num_passed_blocks[group]
            end = num_passed_blocks(window, sequence.num_computed_tokens, self._block_size)
            if end > begin:
                table = sequence.block_tables[group]
                self._pool.release(table[begin:end])
                table[begin:end] = [NO_BLOCK] * (end - begin)
                sequence.num_passed_blocks[group] = end
                updates.append(TableUpdate(group, begin, (NO_BLOCK,) * (end - begin)))
        return tuple(updates)

    def num_missing_blocks(self, sequence: Sequence, end: int) -> int:
        """Blocks that ``extend`` to ``end`` takes."""
        index, offset = divmod(sequence.num_computed_tokens, self._block_size)
        num_blocks = self._num_blocks(end)
        num_missing = 0
        for table in sequence.block_tables:
            num_missing += max(0, num_blocks - len(table))
            num_missing += offset > 0 and self._is_shared(table[index])
        return num_missing

    def reachable_end(self, sequence: Sequence, end: int) -> int:
        """How far, at most to ``end``, ``extend`` can go with the blocks that are free."""
        begin = sequence.num_computed_tokens
        while end > begin and self.num_missing_blocks(sequence, end) > self._pool.num_free:
            end = (end - 1) // self._block_size * self._block_size
        return max(begin, end)

    def extend(self, sequence: Sequence, end: int, copies: list[BlockCopy]) -> list[TableUpdate]:
        """Make positions up to ``end`` writable; the caller has seen that the blocks are free.

        A block that others hold, or that is cached, is copied before it is written: ``copies``
        gets what the step must copy. The last holder of one that is not cached writes in place.
        """
        index, offset = divmod(sequence.num_computed_tokens, self._block_size)
        num_blocks = self._num_blocks(end)
        request_id = sequence.request.request_id
        updates = []
        for group, table in enumerate(sequence.block_tables):
            if offset > 0 and self._is_shared(table[index]):
                source, table[index] = table[index], self._allocate(request_id)
                self._copy_sources[source] += 1
                copies.append(BlockCopy(source, table[index]))
                updates.append(TableUpdate(group, index, (table[index],)))
            begin = len(table)
            if num_blocks > begin:
                new = tuple([self._allocate(request_id) for _ in range(begin, num_blocks)])
                table.extend(new)
                updates.append(TableUpdate(group, begin, new))
        sequence.num_writable_tokens = min(map(len, sequence.block_tables)) * self._block_size
        return updates

    def publish(self, sequence: Sequence) -> None:
        """Make blocks that the finished step filled addressable for others."""
        if not self._prefix_caching:
            return
        num_full = sequence.num_computed_tokens // self._block_size
        for index in range(sequence.num_published_blocks, num_full):
            key = sequence.block_key(index, self._block_size)
            for group, table in enumerate(sequence.block_tables):
                if self._cache.insert(key, group, table[index], index + 1):
                    self._pool.mark_cached(table[index])
        sequence.num_published_blocks = num_full

    def release(self, sequence: Sequence) -> None:
        """Drop the block tables, their end first: a block is no use once one before it is evicted,
        except behind a window, and what a window has passed went even earlier.
        """
        tables = sequence.block_tables
        self._pool.release(
            [
                table[index]
                for index in reversed(range(max(map(len, tables))))
                for table in tables
                if index < len(table) and table[index] != NO_BLOCK
            ]
        )
        for table in tables:
            table.clear()  # an audit may be amid it
        sequence.block_tables = []
        sequence.num_passed_blocks = []
        sequence.num_computed_tokens = 0
        sequence.num_published_blocks = 0

    def give_back(self, block_id: int, num_references: int) -> None:
        """Drop references that no sequence has."""
        self._pool.release([block_id] * num_references)

    def commit(self) -> None:
        """The step did what was planned: what it published stays, its copies are made."""
        self._cache.commit()
        self._pool.release(self._copy_sources.elements())
        self._copy_sources.clear()

    def reset(self) -> None:
        """After a failure, from any state: drop all references, keep what older steps cached."""
        self._copy_sources.clear()
        self._cache.rollback()
        self._pool.reset(self._cache.block_ids)

    def forget_cached(self) -> None:
        """The pool's content is lost, and no tier is told. Precondition: nobody holds a block."""
        for block_id in list(self._cache.block_ids):
            self._cache.evict(block_id)
        self._pool.reset(())
        self._pool.take_freed()  # what comes in its place holds nothing that could be read

    def take_freed_block_ids(self) -> tuple[int, ...]:
        return self._pool.take_freed()

    def take_events(self) -> CacheEvents | None:
        return self._cache.take_events()

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise ``AssertionError`` unless pool, cache and the tables of ``sequences`` agree."""
        expected = [0] * self._pool.num_blocks
        for block_id, num_holds in self._copy_sources.items():
            expected[block_id] += num_holds
        for sequence in sequences:
            self._check_tables(sequence)
            for table in sequence.block_tables:
                for block_id in table:
                    if block_id != NO_BLOCK:
                        expected[block_id] += 1
        self._pool.check_integrity(expected)
        self._cache.check_integrity()
        assert set(self._cache.block_ids) == self._pool.cached_block_ids, "cache and pool disagree"

    def _check_tables(self, sequence: Sequence) -> None:
        assert len(sequence.block_tables) == len(self._windows), "a group has no table"
        held = [b for table in sequence.block_tables for b in table if b != NO_BLOCK]
        assert len(set(held)) == len(held), "a block stands twice in the tables of a sequence"
        for table, window, num_passed in zip(
            sequence.block_tables, self._windows, sequence.num_passed_blocks, strict=True
        ):
            assert sequence.num_computed_tokens <= len(table) * self._block_size
            visible = num_passed_blocks(window, sequence.num_computed_tokens, self._block_size)
            assert num_passed <= visible, "a block went that the next token sees"
            assert [b == NO_BLOCK for b in table] == [i < num_passed for i in range(len(table))]

    def _evict(self, block_id: int) -> None:
        content = self._cache.evict(block_id)
        if self._writer is not None:
            self._writer.evicted(block_id, content.key, content.chain_len)

    def _allocate(self, request_id: str) -> int:
        block_id = self._pool.allocate()
        self._last_holders[block_id] = request_id
        return block_id

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)

    def _is_shared(self, block_id: int) -> bool:
        num_holders = self._pool.num_references(block_id) - self._copy_sources[block_id]
        return num_holders > 1 or self._pool.is_cached(block_id)
