"""Tells that a step ran out of memory from the other ways in which torch can fail."""

import torch

_CPU_ALLOCATOR_WORDS = ("can't allocate memory", "not enough memory")


def is_out_of_memory(error: BaseException) -> bool:
    """torch has a type for it on accelerators alone: its CPU allocator only says so."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in _CPU_ALLOCATOR_WORDS
    )
