import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import RunnerError
from engine.kv_geometry import KvGeometry, KvGroup
from engine.slot_tables import SlotTables
from engine.step import NO_BLOCK, TableUpdate

BLOCK_SIZE = 4
NUM_SLOTS = 4
MAX_BLOCKS = 6
GEOMETRY = KvGeometry((KvGroup((0,)), KvGroup((1,), window=8)), 1, 2, BLOCK_SIZE, 2)


def make_tables() -> SlotTables:
    return SlotTables(GEOMETRY, num_slots=NUM_SLOTS, max_len=MAX_BLOCKS * BLOCK_SIZE)


def tables_of(tables: SlotTables, slots: list[int], num_blocks: int) -> list[list[list[int]]]:
    """Per group and slot the first ``num_blocks`` entries."""
    starts = np.full(len(slots), num_blocks * BLOCK_SIZE - 1)
    batches = tables.batches(np.array(slots), starts, np.ones(len(slots), dtype=np.int64))
    return [batch.block_tables[:, :num_blocks].tolist() for batch in batches]


changes = st.one_of(
    st.tuples(st.just("admit"), st.integers(0, NUM_SLOTS - 1)),
    st.tuples(st.just("grow"), st.integers(0, NUM_SLOTS - 1)),
    st.tuples(st.just("replace"), st.integers(0, NUM_SLOTS - 1)),
    st.tuples(st.just("batch"), st.permutations(range(NUM_SLOTS))),
    st.tuples(st.just("part"), st.permutations(range(NUM_SLOTS))),
)


@given(st.lists(changes, max_size=40))
def test_batches_hold_what_was_written_in_whatever_order(
    steps: list[tuple[str, int | list[int]]],
) -> None:
    tables = make_tables()
    expected = [[[0, 0]] * NUM_SLOTS, [[0, 0]] * NUM_SLOTS]  # per group and slot
    for slot in range(NUM_SLOTS):
        tables.admit(slot, [[0, 0], [0, 0]])
    next_block = 1
    for kind, argument in steps:
        if isinstance(argument, list):
            slots = argument if kind == "batch" else argument[:2]
            num_blocks = min(len(group[slot]) for group in expected for slot in slots)
            found = tables_of(tables, slots, num_blocks)
            assert found == [[group[slot][:num_blocks] for slot in slots] for group in expected]
            continue
        for group, held in enumerate(expected):
            if kind == "admit":
                held[argument] = [next_block, next_block + 1]
            elif kind == "grow" and len(held[argument]) < MAX_BLOCKS:
                update = TableUpdate(group, len(held[argument]), (next_block,))
                tables.update(argument, update)
                held[argument] = [*held[argument], next_block]
            elif kind == "replace":
                tables.update(argument, TableUpdate(group, 0, (NO_BLOCK,)))
                held[argument] = [NO_BLOCK, *held[argument][1:]]
            next_block += 2
        if kind == "admit":
            tables.admit(argument, [held[argument] for held in expected])
    assert tables_of(tables, [2, 0], 2) == [
        [group[slot][:2] for slot in (2, 0)] for group in expected
    ]


def test_the_tables_of_the_same_sequences_stay_where_they_are() -> None:
    tables = make_tables()
    for slot in (0, 1):
        tables.admit(slot, [[slot], [slot + 2]])
    slots, one = np.array([1, 0]), np.ones(2, dtype=np.int64)
    [before, _] = tables.batches(slots, one, one)
    tables.update(0, TableUpdate(0, 1, (9,)))
    [after, _] = tables.batches(slots.copy(), one, one)
    assert np.shares_memory(before.block_tables, after.block_tables)
    assert after.block_tables[:, :2].tolist() == [[1, 0], [0, 9]]


def test_tokens_beyond_a_table_are_refused() -> None:
    tables = make_tables()
    tables.admit(0, [[1], [2]])
    with pytest.raises(RunnerError, match="beyond the block table"):
        tables_of(tables, [0], 2)
    tables.clear(0)
    with pytest.raises(RunnerError, match="beyond the block table"):
        tables_of(tables, [0], 1)
    with pytest.raises(RunnerError, match="leaves a gap"):
        tables.update(0, TableUpdate(1, 1, (3,)))
