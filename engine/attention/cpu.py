"""Attention on CPUs: decodes in batches of similar context, prefill chunks in tiles of queries.

KV is gathered row by row from the pool into a dense buffer, exactly the rows that were written;
shorter sequences of a group repeat their own first row instead, and the mask takes it out again.
The heads that share a KV head stand in the query dimension, so that each key and value is read
once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

from engine.attention.base import IntArray, RaggedBatch, StepAttention

_MAX_PADDING_ROWS = 256
"""A group ends where padding would cost more than the call of another group."""
_MAX_GROUP_ROWS = 16384
"""Bounds the gathered copy of one group's KV."""
_QUERY_TILE = 128
"""A tile of queries attends only up to its own last one: near half of the work of a whole
prompt."""


class CpuAttention:
    """SDPA on gathered KV."""

    def prepare(self, batch: RaggedBatch) -> StepAttention:
        return _CpuStep(batch)


class _CpuStep:
    def __init__(self, batch: RaggedBatch) -> None:
        self._new_rows = torch.from_numpy(batch.new_rows())
        is_longer = batch.num_tokens > 1
        num_decodes = int(is_longer.argmax()) if is_longer.any() else len(batch.starts)
        self._decodes = list(_group_decodes(batch, num_decodes))
        self._chunks = [_create_chunk(batch, i) for i in range(num_decodes, len(batch.starts))]

    def __call__(self, query: Tensor, new_kv: Tensor, kv: Tensor) -> Tensor:
        kv.flatten(1).index_copy_(0, self._new_rows, new_kv.flatten(1))
        output = torch.empty(query.shape, dtype=query.dtype)
        for group in self._decodes:
            group.attend(query, kv, output)
        for chunk in self._chunks:
            chunk.attend(query, kv, output)
        return output.flatten(1)


def _gather(kv: Tensor, rows: Tensor) -> Tensor:
    """[num_rows, 2 * num_kv_heads * head_dim] A flat row is one memcpy; with inner dimensions
    index_select takes four times as long."""
    return kv.flatten(1).index_select(0, rows)


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Sequences with one query each and contexts of similar length."""

    tokens: slice | Tensor
    """Where the queries stand in the flat token dimension."""
    rows: Tensor
    """[num_seqs * max_context] Pool rows, padded."""
    mask: Tensor | None
    """[num_seqs, 1, 1, max_context] True where a row is a sequence's own; absent without
    padding."""

    def attend(self, query: Tensor, kv: Tensor, output: Tensor) -> None:
        _, _, num_kv_heads, head_dim = kv.shape
        queries = query[self.tokens]
        num_seqs = len(queries)
        queries = queries.view(num_seqs, num_kv_heads, -1, head_dim)
        gathered = _gather(kv, self.rows)
        # [num_seqs, 2, num_kv_heads, max_context, head_dim]
        gathered = gathered.view(num_seqs, -1, 2, num_kv_heads, head_dim).permute(0, 2, 3, 1, 4)
        keys, values = gathered.unbind(1)
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=self.mask)
        output[self.tokens] = attended.flatten(1, 2)


def _group_decodes(batch: RaggedBatch, num_decodes: int) -> Iterator[_DecodeGroup]:
    lens = batch.context_lens[:num_decodes]
    order = np.argsort(-lens, kind="stable")
    begin = 0
    while begin < num_decodes:
        end = begin + _group_size(lens[order[begin:]])
        yield _create_group(batch, order[begin:end], is_whole=end - begin == num_decodes)
        begin = end


def _group_size(lens: IntArray) -> int:
    """How many of the sequences, longest first, go into one group."""
    padding = np.cumsum(lens[0] - lens)
    rows = lens[0] * np.arange(1, len(lens) + 1)
    is_fitting = (padding <= _MAX_PADDING_ROWS) & (rows <= _MAX_GROUP_ROWS)
    is_fitting[0] = True
    return len(lens) if is_fitting.all() else int(is_fitting.argmin())


def _create_group(batch: RaggedBatch, members: IntArray, *, is_whole: bool) -> _DecodeGroup:
    if is_whole:
        # In the order of the batch the queries are a slice: nothing to gather or scatter.
        members = np.arange(len(members))
    lens = batch.context_lens[members][:, None]
    positions = np.arange(lens.max())
    block, offset = np.divmod(positions, batch.block_size)
    rows = batch.block_tables[members][:, block] * batch.block_size + offset
    is_own = positions < lens
    rows = np.where(is_own, rows, rows[:, :1])
    mask = None if is_own.all() else torch.from_numpy(is_own)[:, None, None, :]
    tokens = slice(0, len(members)) if is_whole else torch.from_numpy(members)
    return _DecodeGroup(tokens, torch.from_numpy(rows.reshape(-1)), mask)


@dataclass(frozen=True, slots=True)
class _PrefillChunk:
    """Several queries of one sequence."""

    first: int
    """Where they begin in the flat token dimension."""
    rows: Tensor
    """[context_len] Pool rows of the sequence."""
    tiles: tuple["_QueryTile", ...]

    def attend(self, query: Tensor, kv: Tensor, output: Tensor) -> None:
        _, _, num_kv_heads, head_dim = kv.shape
        gathered = _gather(kv, self.rows).view(-1, 2, num_kv_heads, head_dim)
        gathered = gathered.permute(1, 2, 0, 3).unsqueeze(2)
        keys, values = gathered.unbind(0)  # [num_kv_heads, 1, context_len, head_dim]
        for tile in self.tiles:
            tokens = slice(self.first + tile.begin, self.first + tile.end)
            # [num_kv_heads, group, tile, head_dim]; heads of a group share keys without a copy.
            queries = query[tokens].view(tile.end - tile.begin, num_kv_heads, -1, head_dim)
            queries = queries.permute(1, 2, 0, 3)
            shape = (num_kv_heads, queries.shape[1], tile.context_len, head_dim)
            attended = F.scaled_dot_product_attention(
                queries,
                keys[:, :, : tile.context_len].expand(shape),
                values[:, :, : tile.context_len].expand(shape),
                attn_mask=tile.mask,
            )
            output[tokens] = attended.flatten(0, 1).transpose(0, 1)


@dataclass(frozen=True, slots=True)
class _QueryTile:
    begin: int
    """First and one past the last query, counted in the chunk."""
    end: int
    context_len: int
    """Tokens that the last query of the tile attends to."""
    mask: Tensor
    """[end - begin, context_len] Causal: aligned at the lower right corner."""


def _create_chunk(batch: RaggedBatch, index: int) -> _PrefillChunk:
    start, num_tokens = int(batch.starts[index]), int(batch.num_tokens[index])
    tiles = []
    for begin in range(0, num_tokens, _QUERY_TILE):
        end = min(begin + _QUERY_TILE, num_tokens)
        shape = (end - begin, start + end)
        mask = torch.ones(shape, dtype=torch.bool).tril(diagonal=start + begin)
        tiles.append(_QueryTile(begin, end, start + end, mask))
    rows = torch.from_numpy(batch.context_rows(index))
    return _PrefillChunk(int(batch.token_starts[index]), rows, tuple(tiles))
