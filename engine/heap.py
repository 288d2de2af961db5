"""What glibc does with freed memory: hand it back to the kernel, or keep it in the process.

While a model is loaded, temporary tensors lie between those that stay. In the heap they would leave
holes of some hundredths of the weights; mapped by themselves they go back at once. A step allocates
its activations and logits anew. Handed back, each of their pages is cleared and mapped again every
time: that took a third to a half of the time of sampling at batch 64.
"""

import ctypes
from collections.abc import Mapping

from engine.config import MIB

KEPT_BYTES = 256 * MIB
"""Free memory at the end of the heap that the process keeps."""
_MAX_HEAP_ALLOCATION_BYTES = 32 * MIB
"""The most that a step takes from the heap; what is larger is mapped by itself."""
_MAX_LOADING_ALLOCATION_BYTES = MIB // 8
"""The same while loading. glibc begins with it but raises it with the first mapping it frees."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of glibc's malloc.h."""


def hand_back_freed_memory() -> bool:
    """Of large tensors in this process, until memory shall be kept; False where the C library has
    no such settings."""
    return _set({_M_MMAP_THRESHOLD: _MAX_LOADING_ALLOCATION_BYTES})


def keep_freed_memory() -> bool:
    """For this process, from now on; False where the C library has no such settings."""
    return _set({_M_TRIM_THRESHOLD: KEPT_BYTES, _M_MMAP_THRESHOLD: _MAX_HEAP_ALLOCATION_BYTES})


def _set(options: Mapping[int, int]) -> bool:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all(mallopt(option, value) for option, value in options.items())
