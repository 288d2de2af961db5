"""Block tables of the runner: one per KV group and slot.

Must not know what the blocks hold or why a table changes.
"""

from collections.abc import Sequence

import numpy as np

from engine.attention.base import IntArray, RaggedBatch
from engine.errors import RunnerError
from engine.kv_geometry import KvGeometry
from engine.step import TableUpdate


class SlotTables:
    """Owner of the tables; a slot's are valid from ``admit`` on."""

    def __init__(self, geometry: KvGeometry, *, num_slots: int, max_len: int) -> None:
        self._block_size = geometry.block_size_tokens
        self._windows = [group.window for group in geometry.groups]
        num_groups = len(geometry.groups)
        max_blocks = -(-max_len // self._block_size)
        self._tables: IntArray = np.zeros((num_groups, num_slots, max_blocks), dtype=np.int64)
        self._num_blocks: IntArray = np.zeros((num_groups, num_slots), dtype=np.int64)
        # The tables of the last batch, in its order: decodes of the same sequences, the usual case,
        # only write to them what is new.
        self._rows: IntArray = np.zeros_like(self._tables)
        self._slots: IntArray = np.zeros(0, dtype=np.int64)
        self._row_of_slot: list[int | None] = [None] * num_slots

    def clear(self, slot: int) -> None:
        self._num_blocks[:, slot] = 0

    def admit(self, slot: int, block_tables: Sequence[Sequence[int]]) -> None:
        """Replace the slot's tables, one per group."""
        if len(block_tables) != len(self._windows):
            raise RunnerError(
                f"the plan has {len(block_tables)} block tables where the model has "
                f"{len(self._windows)} KV groups."
            )
        self.clear(slot)
        for group, block_ids in enumerate(block_tables):
            self._write(slot, group, 0, block_ids)

    def update(self, slot: int, update: TableUpdate) -> None:
        """Append to a table, or replace entries of it."""
        if update.start > self._num_blocks[update.group, slot]:
            raise RunnerError("the plan leaves a gap in a block table.")
        self._write(slot, update.group, update.start, update.block_ids)

    def batches(self, slots: IntArray, starts: IntArray, num_tokens: IntArray) -> list[RaggedBatch]:
        """One per KV group, for new tokens of ``slots`` from ``starts`` on; their block tables are
        valid until the next call that changes some."""
        needed = -(-(starts + num_tokens) // self._block_size)
        if (needed > self._num_blocks[:, slots]).any():
            raise RunnerError("the plan computes tokens beyond the block table of their slot.")
        if not np.array_equal(slots, self._slots):
            self._arrange(slots)
        return [
            RaggedBatch(starts, num_tokens, rows[: len(slots)], self._block_size, window)
            for rows, window in zip(self._rows, self._windows, strict=True)
        ]

    def _arrange(self, slots: IntArray) -> None:
        for slot in self._slots.tolist():
            self._row_of_slot[slot] = None
        for row, slot in enumerate(slots.tolist()):
            self._row_of_slot[slot] = row
        self._slots = slots
        most = int(self._num_blocks[:, slots].max())
        self._rows[:, : len(slots), :most] = self._tables[:, slots, :most]

    def _write(self, slot: int, group: int, start: int, block_ids: Sequence[int]) -> None:
        end = start + len(block_ids)
        if end > self._tables.shape[2]:
            raise RunnerError("the plan's block table is longer than the longest context.")
        self._tables[group, slot, start:end] = block_ids
        row = self._row_of_slot[slot]
        if row is not None:
            self._rows[group, row, start:end] = block_ids
        self._num_blocks[group, slot] = max(self._num_blocks[group, slot], end)
