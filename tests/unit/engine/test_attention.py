from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.attention import create_attention
from engine.attention.base import AttentionBackend, RaggedBatch
from engine.attention.cpu import CpuAttention
from engine.attention.reference import ReferenceAttention, attend_one
from engine.errors import EngineConfigError
from engine.kv_geometry import KvGeometry, KvGroup
from engine.step import NO_BLOCK

CPU = torch.device("cpu")
HEAD_DIM = 16
SCALE = HEAD_DIM**-0.5


def run(
    backend: AttentionBackend,
    batch: RaggedBatch,
    query: torch.Tensor,
    new_kv: torch.Tensor,
    kv: torch.Tensor,
) -> torch.Tensor:
    with torch.inference_mode():
        return backend.prepare(batch)(query, new_kv, kv)


def make_geometry(num_kv_heads: int, dtype: torch.dtype) -> KvGeometry:
    return KvGeometry((KvGroup((0,)),), num_kv_heads, HEAD_DIM, 16, dtype.itemsize)


def make_batch(
    sequences: list[tuple[int, int]],
    block_size: int,
    num_kv_heads: int,
    dtype: torch.dtype,
    window: int | None = None,
) -> tuple[RaggedBatch, torch.Tensor]:
    """Sequences of (start, num_tokens) in shuffled blocks of a pool whose other rows are NaN: those
    behind a window, too, whose blocks have left the table."""
    random = np.random.default_rng(len(sequences) * 1000 + block_size)
    starts = np.array([start for start, _ in sequences])
    num_tokens = np.array([count for _, count in sequences])
    num_blocks = -(-(starts + num_tokens) // block_size)
    free = random.permutation(int(num_blocks.sum()) + 3)
    tables = np.zeros((len(sequences), int(num_blocks.max())), dtype=np.int64)
    kv = torch.full((len(free) * block_size, 2, num_kv_heads, HEAD_DIM), torch.nan, dtype=dtype)
    for index, (start, _) in enumerate(sequences):
        tables[index, : num_blocks[index]], free = np.split(free, [num_blocks[index]])
        begin = 0 if window is None else max(0, start + 1 - window)
        positions = np.arange(begin, start)
        rows = tables[index, positions // block_size] * block_size + positions % block_size
        kv[torch.from_numpy(rows)] = torch.randn(len(rows), 2, num_kv_heads, HEAD_DIM).to(dtype)
        tables[index, : begin // block_size] = NO_BLOCK
        # What lies beyond a sequence's own blocks must not matter.
        tables[index, num_blocks[index] :] = len(free) % 3
    return RaggedBatch(starts, num_tokens, tables, block_size, window), kv


decodes = st.tuples(st.integers(0, 200), st.just(1))
chunks = st.tuples(st.integers(0, 200), st.integers(1, 150))


@settings(max_examples=50, deadline=None)
@given(
    sequences=st.tuples(st.lists(decodes, max_size=6), st.lists(chunks, max_size=3))
    .map(lambda parts: parts[0] + parts[1])
    .filter(bool),
    block_size=st.sampled_from([1, 4, 16]),
    num_kv_heads=st.sampled_from([1, 2, 3]),
    group=st.sampled_from([1, 3]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    window=st.none() | st.integers(1, 220),
)
def test_both_back_ends_agree_on_ragged_batches_in_a_poisoned_pool(
    sequences: list[tuple[int, int]],
    block_size: int,
    num_kv_heads: int,
    group: int,
    dtype: torch.dtype,
    window: int | None,
) -> None:
    torch.manual_seed(len(sequences))
    batch, kv = make_batch(sequences, block_size, num_kv_heads, dtype, window)
    total = int(batch.num_tokens.sum())
    query = torch.randn(total, num_kv_heads * group, HEAD_DIM).to(dtype)
    new_kv = torch.randn(total, 2, num_kv_heads, HEAD_DIM).to(dtype)
    kv_of_reference = kv.clone()

    expected = run(ReferenceAttention(CPU, SCALE), batch, query, new_kv, kv_of_reference)
    actual = run(CpuAttention(make_geometry(num_kv_heads, dtype), SCALE), batch, query, new_kv, kv)

    tolerance = 1e-5 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(kv, kv_of_reference, rtol=0, atol=0, equal_nan=True)


def test_decodes_that_overflow_a_group_are_split_without_a_change() -> None:
    sequences = [(3000 + 7 * index, 1) for index in range(5)] + [(40, 1), (12, 1)]
    batch, kv = make_batch(sequences, 16, 2, torch.float32)
    query, new_kv = torch.randn(7, 4, HEAD_DIM), torch.randn(7, 2, 2, HEAD_DIM)
    expected = run(ReferenceAttention(CPU, SCALE), batch, query, new_kv, kv.clone())
    actual = run(CpuAttention(make_geometry(2, torch.float32), SCALE), batch, query, new_kv, kv)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def test_reference_is_causal_attention_over_the_whole_sequence() -> None:
    keys, values = torch.randn(2, 20, 2, HEAD_DIM).unbind(0)
    query = torch.randn(20, 4, HEAD_DIM)
    expected = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        keys.transpose(0, 1)[None],
        values.transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=True,
    )[0].transpose(0, 1)
    torch.testing.assert_close(attend_one(query, keys, values, scale=SCALE), expected)
    # The last queries alone see the same context.
    torch.testing.assert_close(attend_one(query[-7:], keys, values, scale=SCALE), expected[-7:])


def test_a_window_ends_the_view_of_the_reference_so_many_tokens_back() -> None:
    keys, values = torch.randn(2, 20, 2, HEAD_DIM).unbind(0)
    query = torch.randn(20, 4, HEAD_DIM)
    windowed = attend_one(query, keys, values, scale=SCALE, window=6)
    torch.testing.assert_close(
        windowed[:6], attend_one(query[:6], keys[:6], values[:6], scale=SCALE)
    )
    expected = attend_one(query[13:14], keys[8:14], values[8:14], scale=SCALE)
    torch.testing.assert_close(windowed[13:14], expected)


def test_new_keys_and_values_land_in_the_rows_of_their_positions() -> None:
    batch = RaggedBatch(
        starts=np.array([5, 0]),
        num_tokens=np.array([1, 3]),
        block_tables=np.array([[7, 2], [4, 0]]),
        block_size=4,
    )
    assert batch.positions().tolist() == [5, 0, 1, 2]
    assert batch.new_rows().tolist() == [2 * 4 + 1, 16, 17, 18]
    assert batch.context_rows(0).tolist() == [28, 29, 30, 31, 8, 9]
    windowed = replace(batch, window=3)
    assert windowed.context_rows(0).tolist() == [31, 8, 9]
    assert windowed.context_rows(1).tolist() == [16, 17, 18]


def test_the_cpu_back_end_is_refused_on_another_device() -> None:
    geometry, cuda = make_geometry(2, torch.float32), torch.device("cuda")
    assert isinstance(create_attention("auto", CPU, geometry, scale=SCALE), CpuAttention)
    assert isinstance(create_attention("auto", cuda, geometry, scale=SCALE), ReferenceAttention)
    with pytest.raises(EngineConfigError, match="use 'auto'"):
        create_attention("cpu", cuda, geometry, scale=SCALE)
