"""The free slots that one engine holds, so that evicting a block never waits for the node.

Always its whole share, however few it used lately: one step may admit a prompt that evicts as many
blocks as it has, and what finds no slot then is lost. Must not know connections.
"""

from cache_tiers.block_image import ImageLayout
from cache_tiers.image_store import ImageStore


class SlotStock:
    """Owner of what was granted to one connection and not used yet."""

    def __init__(self, store: ImageStore, layout: ImageLayout) -> None:
        self._store = store
        self._layout = layout
        self._granted: set[int] = set()

    def __len__(self) -> int:
        return len(self._granted)

    def use(self, offset: int) -> bool:
        """Whether ``offset`` was granted; it isn't any more."""
        if offset not in self._granted:
            return False
        self._granted.remove(offset)
        return True

    def refill(self, share: int) -> list[int]:
        """Newly granted slots, up to ``share`` with those that are held already."""
        num_missing = share - len(self._granted)
        if num_missing <= 0:
            return []
        offsets = self._store.grant(self._layout, num_missing)
        self._granted.update(offsets)
        return offsets

    def give_back(self) -> None:
        """Nobody writes to the slots any more."""
        self._store.give_back(self._layout, sorted(self._granted))
        self._granted.clear()
