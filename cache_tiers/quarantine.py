"""Keys whose images were found bad after all checks: not to be had from others again.

Bounded: the oldest are forgotten, and at worst found bad once more.
"""

from cache_tiers.keys import BlockKey

_MAX_KEYS = 10_000


class Quarantine:
    """Owner: one node's cache."""

    def __init__(self) -> None:
        self._keys: dict[tuple[int, BlockKey], None] = {}
        self.num_discarded = 0

    def has(self, layout_number: int, key: BlockKey) -> bool:
        return (layout_number, key) in self._keys

    def add(self, layout_number: int, key: BlockKey) -> None:
        self.num_discarded += 1
        while len(self._keys) >= _MAX_KEYS:
            del self._keys[next(iter(self._keys))]
        self._keys[layout_number, key] = None
