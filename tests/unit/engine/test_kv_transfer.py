"""KV between pool and arena: what comes back is what left, bit by bit, or is told to be bad."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from torch import Tensor

from cache_tiers.block_image import ImageLayout, make_fingerprint
from engine.kv_geometry import KvGeometry, KvGroup
from engine.kv_images import RankImages
from engine.kv_pool import KvPool
from engine.kv_transfer import KvTransfer
from engine.step import BlockTransfer
from tests.unit.engine.arenas import make_arena, transfer

NUM_BLOCKS = 24
NUM_SLOTS = 24
GEOMETRY = KvGeometry(
    (KvGroup((0, 1, 2)),), num_kv_heads=2, head_dim=4, block_size_tokens=4, bytes_per_element=2
)
FINGERPRINT = make_fingerprint("model")


def make_layout(num_shards: int = 1) -> ImageLayout:
    return ImageLayout(FINGERPRINT, num_shards, GEOMETRY.block_bytes, GEOMETRY.block_size_tokens)


@dataclass(frozen=True, slots=True)
class Rank:
    pool: KvPool
    transfer: KvTransfer

    def block(self, block_id: int) -> Tensor:
        return self.pool.block(block_id).clone()

    def blocks(self) -> list[Tensor]:
        return [self.block(block_id) for block_id in range(NUM_BLOCKS)]


def make_rank(
    arena: memoryview, layout: ImageLayout, rank: int = 0, *, num_threads: int = 1
) -> Rank:
    pool = KvPool(GEOMETRY, NUM_BLOCKS, dtype=torch.bfloat16, device=torch.device("cpu"))
    for block_id in range(NUM_BLOCKS):
        generator = torch.Generator().manual_seed(100 * rank + block_id)
        pool.block(block_id).normal_(generator=generator)
    images = RankImages(arena, layout, rank)
    return Rank(pool, KvTransfer(pool, images, num_threads=num_threads))


@pytest.fixture
def layout() -> ImageLayout:
    return make_layout()


@pytest.fixture
def arena(layout: ImageLayout) -> memoryview:
    return make_arena(layout, NUM_SLOTS)


@pytest.fixture
def rank(arena: memoryview, layout: ImageLayout) -> Rank:
    return make_rank(arena, layout)


def test_an_image_is_the_rows_of_a_layer_after_the_other(
    rank: Rank, arena: memoryview, layout: ImageLayout
) -> None:
    rank.transfer.store([transfer(layout, block_id=5, slot=1)])
    begin = layout.image_bytes
    rows = [layer[20:24] for layer in rank.pool.layers]  # 4 tokens in each block
    expected = torch.stack(rows).view(torch.uint8).flatten().tolist()
    assert arena[begin : begin + layout.shard_bytes].tolist() == expected


@pytest.mark.parametrize("num_threads", [1, 3])
def test_all_blocks_come_back_in_other_places(
    arena: memoryview, layout: ImageLayout, num_threads: int
) -> None:
    rank = make_rank(arena, layout, num_threads=num_threads)
    before = rank.blocks()
    rank.transfer.store([transfer(layout, block, NUM_SLOTS - 1 - block) for block in range(24)])
    rank.pool.poison()
    loads = [transfer(layout, (7 * slot) % NUM_BLOCKS, slot) for slot in range(NUM_SLOTS)]
    assert rank.transfer.load(loads) == ()
    for slot in range(NUM_SLOTS):
        assert torch.equal(rank.block((7 * slot) % NUM_BLOCKS), before[NUM_SLOTS - 1 - slot])
    rank.transfer.close()


@pytest.mark.parametrize("num_threads", [1, 3])
def test_bad_images_are_named_by_their_place_in_the_list(
    arena: memoryview, layout: ImageLayout, num_threads: int
) -> None:
    rank = make_rank(arena, layout, num_threads=num_threads)
    transfers = [transfer(layout, block, block) for block in range(NUM_BLOCKS)]
    rank.transfer.store(transfers)
    for slot in (0, 9, 10, 23):
        arena[transfers[slot].offset + 3] ^= 16
    assert rank.transfer.load(transfers) == (0, 9, 10, 23)
    rank.transfer.close()


def test_another_block_another_length_and_no_place_at_all_are_bad(
    rank: Rank, layout: ImageLayout
) -> None:
    stored = transfer(layout, 2, 3)
    rank.transfer.store([stored])
    wanted = [
        stored,
        transfer(layout, 2, 3, key=b"k" * 16),
        transfer(layout, 2, 3, num_tokens=3),
        transfer(layout, 2, 4),  # never written
        BlockTransfer(2, -layout.image_bytes, stored.key, 4),
        BlockTransfer(2, NUM_SLOTS * layout.image_bytes, stored.key, 4),
        BlockTransfer(2, NUM_SLOTS * layout.image_bytes - 4096, stored.key, 4),
    ]
    assert rank.transfer.load(wanted) == (1, 2, 3, 4, 5, 6)


def test_an_image_of_another_model_is_bad(arena: memoryview, layout: ImageLayout) -> None:
    stored = transfer(layout, 0, 0)
    make_rank(arena, layout).transfer.store([stored])
    other = replace(layout, fingerprint=make_fingerprint("another model"))
    assert make_rank(arena, other).transfer.load([stored]) == (0,)


@given(byte=st.integers(0, make_layout().image_bytes - 1), bit=st.integers(0, 7))
def test_no_flipped_bit_in_data_or_footer_is_taken(byte: int, bit: int) -> None:
    layout = make_layout()
    arena = make_arena(layout, 1)
    rank = make_rank(arena, layout)
    stored = transfer(layout, 0, 0)
    rank.transfer.store([stored])
    arena[byte] ^= 1 << bit
    num_head_bytes = 8 + 16 + 16 + 8 + 8  # magic, key, fingerprint, number of tokens, checksum
    footer_begin = layout.footer_offset
    is_padding = not (
        byte < layout.shard_bytes or footer_begin <= byte < footer_begin + num_head_bytes
    )
    assert rank.transfer.load([stored]) == (() if is_padding else (0,))


def test_ranks_write_and_check_their_shards_without_each_other() -> None:
    layout = make_layout(num_shards=3)
    arena = make_arena(layout, 2)
    ranks = [make_rank(arena, layout, number) for number in range(3)]
    before = [rank.block(7) for rank in ranks]
    stored = transfer(layout, 7, 1)
    for rank in reversed(ranks):  # the footer comes last
        rank.transfer.store([stored])
        rank.pool.poison()
    loaded = transfer(layout, 0, 1)
    assert [rank.transfer.load([loaded]) for rank in ranks] == [(), (), ()]
    assert all(torch.equal(rank.block(0), kv) for rank, kv in zip(ranks, before, strict=True))
    arena[stored.offset + layout.shard_bytes] ^= 1  # the first byte of rank 1
    assert [rank.transfer.load([loaded]) for rank in ranks] == [(), (0,), ()]


def test_a_shard_in_the_place_of_another_is_bad() -> None:
    layout = make_layout(num_shards=2)
    arena = make_arena(layout, 1)
    ranks = [make_rank(arena, layout, number) for number in range(2)]
    for rank in ranks:
        rank.pool.block(0).fill_(1.0)  # as with a KV head that both hold
        rank.transfer.store([transfer(layout, 0, 0)])
    checksums = arena[layout.footer_offset + 48 :]
    checksums[0:8], checksums[8:16] = bytes(checksums[8:16]), bytes(checksums[0:8])
    assert [rank.transfer.load([transfer(layout, 0, 0)]) for rank in ranks] == [(0,), (0,)]


def test_a_comparison_tells_other_kv_and_bad_images(
    rank: Rank, arena: memoryview, layout: ImageLayout
) -> None:
    transfers = [transfer(layout, block, block) for block in range(5)]
    rank.transfer.store(transfers)
    rank.pool.block(1)[2] *= 1.01  # rounding
    rank.pool.block(2)[[0, 1]] = rank.pool.block(2)[[1, 0]]
    arena[transfers[3].offset] ^= 1
    rank.pool.block(4)[0, 0] = torch.nan
    assert rank.transfer.compare(transfers) == (2, 3, 4)


def test_a_comparison_ends_with_the_tokens_of_a_partial_block(
    rank: Rank, layout: ImageLayout
) -> None:
    partial = transfer(layout, 0, 0, num_tokens=3)
    rank.transfer.store([partial])
    rank.pool.block(0)[:, 3] = torch.nan
    assert rank.transfer.compare([partial]) == ()
    rank.pool.block(0)[:, 2] = torch.nan
    assert rank.transfer.compare([partial]) == (0,)


moves = st.lists(
    st.tuples(st.booleans(), st.integers(0, NUM_BLOCKS - 1), st.integers(0, NUM_SLOTS - 1)),
    max_size=40,
)


@given(moves=moves)
def test_any_series_of_moves_is_what_a_dictionary_would_do(
    moves: list[tuple[bool, int, int]],
) -> None:
    layout = make_layout()
    rank = make_rank(make_arena(layout, NUM_SLOTS), layout)
    stored: dict[int, Tensor] = {}
    for is_store, block_id, slot in moves:
        before = rank.blocks()
        move = transfer(layout, block_id, slot)
        if is_store:
            rank.transfer.store([move])
            stored[slot] = before[block_id]
        elif rank.transfer.load([move]) == ():
            before[block_id] = stored[slot]
        else:
            assert slot not in stored
            before[block_id] = rank.block(block_id)  # of no use
        assert torch.equal(torch.stack(before), torch.stack(rank.blocks()))
