"""What is copied to the node's cache, and what a slot, a failure or a lost node changes."""

from cache_tiers.keys import BlockKey
from cache_tiers.messages import Stored
from engine.prefix_cache import CachedBlock
from engine.step import BlockTransfer
from engine.write_policy import BlockWriter, HeldBlock, PartialBlock

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
HELD = {A: HeldBlock(1, 1), B: HeldBlock(2, 2), C: HeldBlock(3, 3)}
MANY = 100


def make_writer(*slots: int) -> BlockWriter:
    writer = BlockWriter(block_size_tokens=4)
    writer.open()
    writer.grant(slots)
    return writer


def free(chain_len: int) -> float:
    return 0.0


def test_what_is_wanted_is_stored_in_order_as_far_as_a_step_allows() -> None:
    writer = make_writer(30, 20, 10)
    writer.want([A, B, C])

    assert [t.key for t in writer.take(2, HELD.get)] == [A, B]
    assert writer.commit(lambda chain_len: 0.5 * chain_len) == [
        Stored(10, A, 4, 1, 0.5),
        Stored(20, B, 4, 2, 1.0),
    ]
    assert writer.is_due
    assert [t.key for t in writer.take(2, HELD.get)] == [C]


def test_what_is_evicted_is_stored_whatever_a_step_allows() -> None:
    writer = make_writer(10)
    writer.want([A])

    writer.evicted(1, A, 1)

    assert writer.take(0, HELD.get) == (BlockTransfer(1, 10, A, 4),)
    assert not writer.is_due


def test_where_slots_are_short_the_begin_of_a_chain_is_kept() -> None:
    writer = make_writer(10, 20)
    for block_id, key, chain_len in ((3, C, 3), (2, B, 2), (1, A, 1)):  # as they are evicted
        writer.evicted(block_id, key, chain_len)

    assert [t.key for t in writer.take(MANY, HELD.get)] == [A, B]
    assert writer.num_dropped == 1


def test_a_block_is_not_stored_twice() -> None:
    writer = make_writer(10, 20, 30)
    writer.want([A, A])
    assert len(writer.take(MANY, HELD.get)) == 1
    writer.evicted(1, A, 1)
    assert len(writer.commit(free)) == 1

    writer.want([A])
    writer.evicted(1, A, 1)
    assert writer.take(MANY, HELD.get) == ()

    writer.forget([A])
    writer.want([A])
    assert len(writer.take(MANY, HELD.get)) == 1


def test_what_the_node_brought_is_not_given_back_to_it() -> None:
    writer = make_writer(10)
    writer.note_stored([A])

    writer.evicted(1, A, 1)

    assert writer.take(MANY, HELD.get) == ()


def test_a_partial_block_is_stored_in_the_next_plan_or_never() -> None:
    writer = make_writer()
    writer.want_partial(PartialBlock(7, A, 3, 2))
    assert not writer.is_due
    assert writer.is_pending(A)

    assert writer.take(MANY, HELD.get) == ()
    assert not writer.is_pending(A)
    assert writer.num_dropped == 1

    writer.grant([10])
    writer.want_partial(PartialBlock(7, A, 3, 2))
    assert writer.take(0, HELD.get) == (BlockTransfer(7, 10, A, 2),)
    assert writer.commit(free) == [Stored(10, A, 2, 3, 0.0)]


def test_a_failed_plan_stores_nothing_and_keeps_its_slots() -> None:
    writer = make_writer(10)
    writer.evicted(1, A, 1)
    writer.take(MANY, HELD.get)
    assert writer.is_pending(A)

    writer.abandon()

    assert writer.commit(free) == []
    assert not writer.is_stored(A)
    writer.want([B])
    assert writer.take(MANY, HELD.get) == (BlockTransfer(2, 10, B, 4),)


def test_a_block_that_is_gone_when_its_turn_comes_is_passed_over() -> None:
    writer = make_writer(10)
    writer.want([A, B])

    assert [t.key for t in writer.take(1, {B: HELD[B]}.get)] == [B]


def test_without_a_node_nothing_is_wanted_or_counted() -> None:
    writer = make_writer(10)
    writer.close()

    writer.want([A])
    writer.evicted(1, A, 1)
    writer.want_partial(PartialBlock(7, B, 3, 2))

    assert not writer.is_due
    assert writer.take(MANY, HELD.get) == ()
    assert writer.num_dropped == 0


def test_what_will_be_evicted_next_is_stored_ahead_once_even_if_the_node_does_not_keep_it() -> None:
    writer = make_writer(10, 20)
    block = CachedBlock(BlockKey(A), group=0, chain_len=1)
    writer.want_ahead([block])
    assert [t.key for t in writer.take(MANY, HELD.get)] == [A]
    writer.commit(free)
    writer.forget([A])

    writer.want_ahead([block])
    assert writer.take(MANY, HELD.get) == ()
    writer.evicted(1, A, 1)
    assert [t.key for t in writer.take(MANY, HELD.get)] == [A]


def test_nothing_is_wanted_while_the_accelerator_holds_nothing() -> None:
    writer = make_writer(10, 20)
    writer.want([A])
    writer.want_partial(PartialBlock(2, B, 2, 3))
    writer.pause()
    assert not writer.is_due
    writer.want([C])
    assert (writer.num_wanted, writer.is_pending(C)) == (0, False)
    assert writer.take(MANY, HELD.get) == ()
    writer.open()  # another node came meanwhile
    writer.grant([30])
    writer.want([A])
    assert not writer.is_due
    writer.resume()
    writer.want([A])
    assert writer.take(MANY, HELD.get) == (BlockTransfer(1, 30, A, 4),)
