"""Memory in large pages where the system has them.

A step reads weights and KV from all over hundreds of megabytes: with pages of 4 kB many reads wait
for an address to be looked up first.
"""

import math
import mmap
import time
from contextlib import suppress

import torch
from torch import Tensor

TOUCH_LIMIT_S = 10.0
"""A kernel that has to make room first takes seconds per GiB, and a rank that does nothing else for
long looks stuck.
"""
_HUGE_PAGE_BYTES = 2 * 1024 * 1024
_TOUCHED_AT_ONCE_BYTES = 1024 * 1024 * 1024
"""Enough for torch to use several threads."""


class MappedMemory:
    """A mapping of its own, whose pages can be handed back and had again at the same addresses."""

    def __init__(self, num_bytes: int) -> None:
        # Anonymous and private: what Python maps by default is shared memory, which has no large
        # pages.
        self._mapping = mmap.mmap(
            -1, num_bytes + _HUGE_PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        )
        if num_bytes >= _HUGE_PAGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without large pages
                self._mapping.madvise(mmap.MADV_HUGEPAGE)
        whole = torch.frombuffer(self._mapping, dtype=torch.uint8)
        begin = -whole.data_ptr() % _HUGE_PAGE_BYTES
        self.content: Tensor = whole[begin : begin + num_bytes]
        """[num_bytes] Begins at a large page, and is zero at first; pages never touched cost no
        memory."""

    def touch(
        self, limit_s: float = TOUCH_LIMIT_S, *, at_once_bytes: int = _TOUCHED_AT_ONCE_BYTES
    ) -> None:
        """Take all pages now, while nothing of use is in them: the kernel clears a page at its
        first write, for milliseconds of whoever writes. What is left after ``limit_s`` comes then.
        """
        ends_s = time.monotonic() + limit_s
        for part in self.content.split(at_once_bytes):
            part[:: mmap.PAGESIZE] = 0
            if time.monotonic() >= ends_s:
                break

    def free(self) -> None:
        """Hand all pages back to the kernel; the content is zero then."""
        self._mapping.madvise(mmap.MADV_DONTNEED)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor on the CPU, begun at a large page, zeroed; pages never touched cost no memory."""
    num_bytes = math.prod(shape) * dtype.itemsize
    if num_bytes < _HUGE_PAGE_BYTES:
        return torch.zeros(shape, dtype=dtype)
    return MappedMemory(num_bytes).content.view(dtype).view(shape)
