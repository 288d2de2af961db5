"""How many deltas have reached the sinks, in memory that the gateway and the rank share.

It closes the loop of a saturated run beside the wire, which is left as it is.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

_COUNT_BYTES = 8


class DeliveryCount:
    """One number in a file; written by the gateway, read by the rank."""

    def __init__(self, folder: Path) -> None:
        """Made on the first use in ``folder``."""
        descriptor = os.open(folder / "delivered", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            os.ftruncate(descriptor, _COUNT_BYTES)
            self._count = memoryview(mmap.mmap(descriptor, _COUNT_BYTES)).cast("q")
        finally:
            os.close(descriptor)

    @property
    def value(self) -> int:
        return self._count[0]

    @value.setter
    def value(self, num_deltas: int) -> None:
        self._count[0] = num_deltas
