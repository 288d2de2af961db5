"""How many rows of logits are worked on at a time.

Scratch copies in float32 and float64 are several times the logits; in pieces they stay small and,
on a CPU, in its caches. Accelerators want few launches instead.
"""

from torch import Tensor

_CPU_ELEMENTS = 2**20
"""Fastest of 2^17 to 2^23 at 49,152 and 262,144 tokens: up to 1.5 (2^22) and 4 times (2^23) as
fast as larger ones."""
_ACCELERATOR_ELEMENTS = 2**25


def rows_per_chunk(logits: Tensor) -> int:
    """At least 1."""
    elements = _CPU_ELEMENTS if logits.device.type == "cpu" else _ACCELERATOR_ELEMENTS
    return max(1, elements // logits.shape[-1])
