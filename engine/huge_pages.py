"""Memory in large pages where the system has them.

A step reads weights and KV from all over hundreds of megabytes: with pages of 4 kB many reads wait
for an address to be looked up first.
"""

import math
import mmap
from contextlib import suppress

import torch
from torch import Tensor

_HUGE_PAGE_BYTES = 2 * 1024 * 1024


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor on the CPU, begun at a large page, zeroed; pages never touched cost no memory."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _HUGE_PAGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.zeros(shape, dtype=dtype)
    # Anonymous and private: what Python maps by default is shared memory, which has no large pages.
    memory = mmap.mmap(
        -1, num_bytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    )
    with suppress(OSError):  # a kernel without large pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = torch.frombuffer(memory, dtype=torch.uint8)
    begin = -whole.data_ptr() % _HUGE_PAGE_BYTES
    return whole[begin : begin + num_bytes].view(dtype).view(shape)
