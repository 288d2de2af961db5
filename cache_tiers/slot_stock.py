"""The free slots that one engine holds, so that evicting a block never waits for the node.

As many as it used in bursts lately: the stock doubles when more than half of it was used before it
could be refilled, and shrinks slowly when it wasn't. Must not know connections.
"""

from cache_tiers.block_image import ImageLayout
from cache_tiers.image_store import ImageStore

MIN_SLOTS = 32
_SHRINK_DIVISOR = 8


class SlotStock:
    """Owner of what was granted to one connection and not used yet."""

    def __init__(self, store: ImageStore, layout: ImageLayout) -> None:
        self._store = store
        self._layout = layout
        self._granted: set[int] = set()
        self._wanted = MIN_SLOTS
        self._is_low = False
        self._was_low = False
        """In the second that ``shrink`` ends."""

    def __len__(self) -> int:
        return len(self._granted)

    def use(self, offset: int) -> bool:
        """Whether ``offset`` was granted; it isn't any more."""
        if offset not in self._granted:
            return False
        self._granted.remove(offset)
        self._is_low = len(self._granted) < self._wanted // 2
        return True

    def refill(self, most: int) -> list[int]:
        """Newly granted slots, if any are due. The stock takes no more than ``most``."""
        if self._is_low:
            self._wanted = min(2 * self._wanted, max(most, MIN_SLOTS))
            self._is_low, self._was_low = False, True
        num_missing = min(self._wanted, most) - len(self._granted)
        if num_missing <= 0:
            return []
        offsets = self._store.grant(self._layout, num_missing)
        self._granted.update(offsets)
        return offsets

    def shrink(self) -> None:
        """Once a second: want less if there was enough."""
        if not self._was_low:
            self._wanted = max(MIN_SLOTS, self._wanted - self._wanted // _SHRINK_DIVISOR)
        self._was_low = False

    def give_back(self) -> None:
        """Nobody writes to the slots any more."""
        self._store.give_back(self._layout, sorted(self._granted))
        self._granted.clear()
