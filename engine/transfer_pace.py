"""How many blocks a step may move between accelerator and arena for the sake of streams.

Learned from the times that runners measure. Reads no clock; must not know plans.
"""

_WEIGHT = 0.2
"""Of the newest step: about the last ten that moved something count."""
_UNKNOWN_BLOCKS = 32
"""While no time is known: some milliseconds on any machine."""


class TransferPace:
    """Owner of the mean time of one block."""

    def __init__(self) -> None:
        self.block_s = 0.0
        """0 while unknown."""

    def record(self, num_blocks: int, seconds: float) -> None:
        """Take in a step that moved ``num_blocks``."""
        if num_blocks > 0 and seconds > 0:
            block_s = seconds / num_blocks
            weight = 1.0 if self.block_s == 0 else _WEIGHT
            self.block_s += weight * (block_s - self.block_s)

    def num_within(self, spare_s: float | None, most: int) -> int:
        """Blocks that take no longer than ``spare_s``, from 1 to ``most``; None: any time."""
        if spare_s is None:
            return most
        num_blocks = _UNKNOWN_BLOCKS
        if self.block_s > 0:
            num_blocks = int(min(most, spare_s / self.block_s))
        return max(1, min(most, num_blocks))
