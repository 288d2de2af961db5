"""The pool's memory goes and comes; what looks at it stays."""

import mmap
import re
from pathlib import Path

import pytest
import torch

from engine.config import MIB
from engine.huge_pages import MappedMemory
from engine.kv_geometry import KvGeometry, KvGroup
from engine.kv_pool import KvPool

GEOMETRY = KvGeometry(
    (KvGroup((0, 1)),), num_kv_heads=2, head_dim=64, block_size_tokens=16, bytes_per_element=2
)
NUM_BLOCKS = 2048


def make_pool(device: str) -> KvPool:
    return KvPool(GEOMETRY, NUM_BLOCKS, dtype=torch.bfloat16, device=torch.device(device))


def resident_bytes(address: int) -> int:
    """Of the mapping that holds ``address``."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        bounds = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if bounds and int(bounds[1], 16) <= address < int(bounds[2], 16):
            size = next(row for row in lines if row.startswith("Rss:"))
            return int(size.split()[1]) * 1024
    return 0


def test_pages_go_back_to_the_kernel_and_come_again_at_the_same_addresses() -> None:
    pool = make_pool("cpu")
    num_bytes = pool.block_rows.nbytes
    address = pool.layers[0].data_ptr()
    rows = pool.block_rows.numpy()
    assert resident_bytes(address) >= num_bytes
    pool.block(5)[:] = 1.5
    assert rows[:, 5].any()

    pool.free()
    assert resident_bytes(address) < num_bytes / 10

    pool.allocate()
    assert resident_bytes(address) >= num_bytes
    assert pool.layers[0].data_ptr() == address
    assert not rows.any()
    pool.block(5)[:] = 1.5
    assert rows[:, 5].any()


@pytest.mark.parametrize(("limit_s", "num_touched_mib"), [(60.0, 12), (0.0, 4)])
def test_a_kernel_that_is_slow_with_pages_does_not_hold_a_rank_up_for_long(
    limit_s: float, num_touched_mib: int
) -> None:
    memory = MappedMemory(12 * MIB)
    memory.touch(limit_s, at_once_bytes=4 * MIB)
    num_bytes = resident_bytes(memory.content.data_ptr())
    assert abs(num_bytes - num_touched_mib * MIB) < 2 * MIB


def test_on_a_device_the_storage_that_all_views_share_goes_and_comes() -> None:
    """The meta device stands for one: nothing is computed, sizes are true."""
    pool = make_pool("meta")
    storage = pool.layers[1].untyped_storage()
    num_bytes = storage.nbytes()
    assert num_bytes == pool.block_rows.nbytes
    pool.free()
    assert storage.nbytes() == 0
    pool.free()
    pool.allocate()
    assert storage.nbytes() == num_bytes


@pytest.mark.parametrize("num_bytes", [1, mmap.PAGESIZE + 1, 3 * 1024 * 1024 + 5])
def test_memory_is_zero_at_first_and_after_it_was_handed_back(num_bytes: int) -> None:
    memory = MappedMemory(num_bytes)
    for _ in range(2):
        memory.touch()
        assert memory.content.shape == (num_bytes,)
        assert not memory.content.any()
        memory.content.fill_(7)
        memory.free()
        assert not memory.content.any()
