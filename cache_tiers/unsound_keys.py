"""What a tier had but could not prove: not to be asked for again. Must not know tiers."""

from cache_tiers.block_image import BlockImage

_MAX_KEYS = 10_000
"""The oldest are forgotten, and at worst found unsound once more."""


class UnsoundKeys:
    """Bounded; owner: one tier."""

    def __init__(self, max_keys: int = _MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._keys: dict[tuple[bytes, bytes], None] = {}

    def __contains__(self, item: tuple[bytes, bytes]) -> bool:
        """Of ``(fingerprint, key)``."""
        return item in self._keys

    def add(self, image: BlockImage) -> None:
        while len(self._keys) >= self._max_keys:
            del self._keys[next(iter(self._keys))]
        self._keys[image.layout.fingerprint, image.key] = None

    def discard(self, image: BlockImage) -> None:
        """It was replaced."""
        self._keys.pop((image.layout.fingerprint, image.key), None)
