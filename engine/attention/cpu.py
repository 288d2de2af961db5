"""Attention on CPUs: decodes in batches of similar context, prefill chunks one by one.

KV is gathered row by row from the pool into a dense buffer, exactly the rows that were written and
are within the window; shorter sequences of a group repeat their own last row instead, and the mask
takes it out again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import IntArray, RaggedBatch, StepAttention
from engine.attention.cpu_kernels import attend_decodes, attend_prefill
from engine.kv_geometry import KvGeometry

_MAX_PADDING_ROWS = 256
"""A group ends where padding would cost more than the call of another group."""
_MAX_GROUP_BYTES = 1024 * 1024
"""The gathered KV of a group shall still lie in the core's cache when it is read: that saved 7 to
14 % of a step with 64 sequences, against one group for all."""


class CpuAttention:
    """Dense kernels on gathered KV."""

    def __init__(self, geometry: KvGeometry, scale: float) -> None:
        self._scale = scale
        self._max_group_rows = max(1, _MAX_GROUP_BYTES // geometry.row_bytes)

    def prepare(self, batch: RaggedBatch) -> StepAttention:
        return _CpuStep(batch, self._max_group_rows, self._scale)


class _CpuStep:
    def __init__(self, batch: RaggedBatch, max_group_rows: int, scale: float) -> None:
        self._scale, self._window = scale, batch.window
        self._new_rows = torch.from_numpy(batch.new_rows())
        is_longer = batch.num_tokens > 1
        num_decodes = int(is_longer.argmax()) if is_longer.any() else len(batch.starts)
        self._decodes = list(_group_decodes(batch, num_decodes, max_group_rows))
        token_starts = batch.token_starts
        self._chunks = [
            _PrefillChunk(
                tokens=slice(token_starts[index], token_starts[index] + batch.num_tokens[index]),
                rows=torch.from_numpy(batch.context_rows(index)),
            )
            for index in range(num_decodes, len(batch.starts))
        ]

    def __call__(self, query: Tensor, new_kv: Tensor, kv: Tensor) -> Tensor:
        rows_of_pool = kv.flatten(1)
        rows_of_pool.index_copy_(0, self._new_rows, new_kv.flatten(1))
        output = torch.empty(query.shape, dtype=query.dtype)
        for chunk in self._chunks:
            # A flat row is one memcpy: 37 µs by itself, where a profile of the gather with inner
            # dimensions had shown about 150 µs.
            gathered = rows_of_pool.index_select(0, chunk.rows).view(-1, *kv.shape[1:])
            attend_prefill(
                query[chunk.tokens],
                gathered,
                output[chunk.tokens],
                scale=self._scale,
                window=self._window,
            )
        for group in self._decodes:
            gathered = rows_of_pool.index_select(0, group.rows)
            gathered = gathered.view(group.num_seqs, -1, *kv.shape[1:])
            output[group.tokens] = attend_decodes(
                query[group.tokens], gathered, group.mask, scale=self._scale
            )
        return output.flatten(1)


@dataclass(frozen=True, slots=True)
class _PrefillChunk:
    """Several queries of one sequence."""

    tokens: slice
    """Where they stand in the flat token dimension."""
    rows: Tensor
    """[context_len - context_begin] Pool rows of what they attend to."""


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences with one query each and contexts of similar length."""

    num_seqs: int
    tokens: slice | Tensor
    """Where the queries stand in the flat token dimension."""
    rows: Tensor
    """[num_seqs * max_visible_len] Pool rows, padded."""
    mask: Tensor | None
    """[num_seqs, max_visible_len] True where a row is the sequence's own; absent without
    padding."""


def _group_decodes(
    batch: RaggedBatch, num_decodes: int, max_group_rows: int
) -> Iterator[_DecodeGroup]:
    lens = (batch.context_lens - batch.context_begins)[:num_decodes]
    order = np.argsort(-lens, kind="stable")
    begin = 0
    while begin < num_decodes:
        end = begin + _group_size(lens[order[begin:]], max_group_rows)
        yield _create_group(batch, np.sort(order[begin:end]))
        begin = end


def _group_size(lens: IntArray, max_group_rows: int) -> int:
    """How many of the sequences, longest first, go into one group."""
    padding = np.cumsum(lens[0] - lens)
    rows = lens[0] * np.arange(1, len(lens) + 1)
    is_fitting = (padding <= _MAX_PADDING_ROWS) & (rows <= max_group_rows)
    is_fitting[0] = True
    return len(lens) if is_fitting.all() else int(is_fitting.argmin())


def _create_group(batch: RaggedBatch, members: IntArray) -> _DecodeGroup:
    begins, ends = batch.context_begins[members, None], batch.context_lens[members, None]
    positions = begins + np.arange((ends - begins).max())
    block, offset = np.divmod(np.minimum(positions, ends - 1), batch.block_size)
    blocks = np.take_along_axis(batch.block_tables[members], block, axis=1)
    rows = blocks * batch.block_size + offset
    is_own = positions < ends
    # Neighbours in the batch are a slice of the queries: nothing to gather or scatter.
    first, end = int(members[0]), int(members[-1]) + 1
    return _DecodeGroup(
        num_seqs=len(members),
        tokens=slice(first, end) if end - first == len(members) else torch.from_numpy(members),
        rows=torch.from_numpy(rows.reshape(-1)),
        mask=None if is_own.all() else torch.from_numpy(is_own),
    )
