"""The block pool: hand-out order, references, what is reported as freed, recovery."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from engine.block_pool import BlockPool


def make_pool(num_blocks: int) -> tuple[BlockPool, list[int]]:
    evicted: list[int] = []
    return BlockPool(num_blocks, on_evict=evicted.append), evicted


def test_uncached_freed_blocks_are_handed_out_before_cached_ones() -> None:
    pool, evicted = make_pool(3)
    cached, uncached, other = pool.allocate(), pool.allocate(), pool.allocate()
    pool.mark_cached(cached)
    pool.release([cached])
    pool.release([uncached])

    assert pool.num_free == 2
    assert pool.allocate() == uncached
    assert evicted == []
    assert pool.allocate() == cached
    assert evicted == [cached]
    assert other != cached


def test_cached_blocks_are_evicted_least_recently_used_first() -> None:
    pool, evicted = make_pool(3)
    a, b, c = (pool.allocate() for _ in range(3))
    for block_id in (a, b, c):
        pool.mark_cached(block_id)
        pool.release([block_id])
    pool.acquire([a])
    pool.release([a])

    assert [pool.allocate() for _ in range(3)] == [b, c, a]
    assert evicted == [b, c, a]


def test_the_next_to_be_evicted_are_those_behind_the_blank_ones() -> None:
    pool, evicted = make_pool(4)
    a, b, c, d = (pool.allocate() for _ in range(4))
    for block_id in (a, b, c):
        pool.mark_cached(block_id)
        pool.release([block_id])
    pool.release([d])

    assert pool.next_evicted(1) == []
    assert pool.next_evicted(3) == [a, b]
    assert pool.next_evicted(9) == [a, b, c]
    for _ in range(3):
        pool.allocate()
    assert evicted == [a, b]


def test_a_shared_block_is_free_only_after_its_last_release() -> None:
    pool, _ = make_pool(1)
    block_id = pool.allocate()
    pool.acquire([block_id])
    pool.release([block_id])
    assert pool.num_free == 0
    pool.release([block_id])
    assert pool.num_free == 1


def test_releasing_twice_is_our_bug() -> None:
    pool, _ = make_pool(1)
    block_id = pool.allocate()
    pool.release([block_id])
    with pytest.raises(AssertionError, match="released twice"):
        pool.release([block_id])


def test_only_dead_content_is_reported_as_freed_and_once() -> None:
    pool, _ = make_pool(2)
    cached, uncached = pool.allocate(), pool.allocate()
    pool.mark_cached(cached)
    pool.release([cached])
    pool.release([uncached])
    assert pool.take_freed() == (uncached,)
    assert pool.take_freed() == ()

    pool.allocate()
    pool.allocate()  # evicts the cached one
    assert pool.take_freed() == (cached,)


def test_a_reset_frees_all_and_keeps_what_is_cached_in_its_order() -> None:
    pool, _ = make_pool(4)
    a, b, c, d = (pool.allocate() for _ in range(4))
    for block_id in (b, a):
        pool.mark_cached(block_id)
        pool.release([block_id])
    pool.mark_cached(c)
    pool.take_freed()

    pool.reset([a, b])

    pool.check_integrity([0] * 4)
    assert pool.num_free == 4
    assert set(pool.take_freed()) == {c, d}
    assert {pool.allocate(), pool.allocate()} == {c, d}
    assert [pool.allocate(), pool.allocate()] == [b, a]


class PoolMachine(RuleBasedStateMachine):
    """Random use against a model that keeps one count per block."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(6, on_evict=self.on_evict)
        self.counts = [0] * 6
        self.cached: set[int] = set()

    def on_evict(self, block_id: int) -> None:
        assert self.counts[block_id] == 0
        self.cached.remove(block_id)

    @precondition(lambda self: 0 in self.counts)
    @rule()
    def allocate(self) -> None:
        has_blank = any(
            count == 0 and block_id not in self.cached for block_id, count in enumerate(self.counts)
        )
        num_cached = len(self.cached)
        block_id = self.pool.allocate()
        assert self.counts[block_id] == 0
        assert (len(self.cached) == num_cached) == has_blank
        self.counts[block_id] = 1

    @rule(block_id=st.integers(0, 5))
    def acquire(self, block_id: int) -> None:
        if self.counts[block_id] > 0 or block_id in self.cached:
            self.pool.acquire([block_id])
            self.counts[block_id] += 1

    @rule(block_ids=st.sets(st.integers(0, 5)), num_holders=st.integers(1, 3))
    def share(self, block_ids: set[int], num_holders: int) -> None:
        referenced = [block_id for block_id in block_ids if self.counts[block_id] > 0]
        self.pool.share(referenced, num_holders)
        for block_id in referenced:
            self.counts[block_id] += num_holders

    @rule(block_id=st.integers(0, 5))
    def release(self, block_id: int) -> None:
        if self.counts[block_id] > 0:
            self.pool.release([block_id])
            self.counts[block_id] -= 1

    @rule(block_id=st.integers(0, 5))
    def mark_cached(self, block_id: int) -> None:
        self.take_freed()  # a step lies between handing a block out and its being full
        if self.counts[block_id] > 0:
            self.pool.mark_cached(block_id)
            self.cached.add(block_id)

    @rule()
    def take_freed(self) -> None:
        assert self.cached.isdisjoint(self.pool.take_freed())

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.pool.check_integrity(self.counts)
        assert self.pool.num_free == self.counts.count(0)
        assert self.pool.cached_block_ids == self.cached


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
