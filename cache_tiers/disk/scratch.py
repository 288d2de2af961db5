"""Memory in huge pages that a thread reads a device into, before it copies on.

A device fills memory of small pages page by page: where the arena has no huge ones, reading into
them and copying takes two thirds of the time of reading into it. Must not know files or images.
"""

import mmap
import os
import threading
from collections.abc import Sequence

import numpy as np

_HUGE_PAGE_BYTES = 2 * 1024**2


class Scratch:
    """A buffer for each thread that reads, as large as its largest request."""

    def __init__(self) -> None:
        self._of_thread = threading.local()

    def read(self, file: int, buffers: Sequence[memoryview], offset: int) -> int:
        """As ``os.preadv``, from and to aligned places; a buffer is filled whole or not at all."""
        memory = self._memory(sum(map(len, buffers)))
        num_read = os.preadv(file, [memory], offset)
        begin = 0
        for buffer in buffers:
            end = begin + len(buffer)
            if end > num_read:
                break
            # Unlike a slice of a memoryview this lets other threads run meanwhile.
            np.copyto(np.frombuffer(buffer, np.uint8), np.frombuffer(memory[begin:end], np.uint8))
            begin = end
        return num_read

    def _memory(self, num_bytes: int) -> memoryview:
        memory: memoryview | None = getattr(self._of_thread, "memory", None)
        if memory is None or len(memory) < num_bytes:
            whole_bytes = -(-num_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
            mapping = mmap.mmap(-1, whole_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            mapping.madvise(mmap.MADV_HUGEPAGE)
            memory = self._of_thread.memory = memoryview(mapping)
        return memory[:num_bytes]
