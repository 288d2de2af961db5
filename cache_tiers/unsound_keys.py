"""Images that were had and could not be proven: not to be asked for again. Must not know tiers."""

from cache_tiers.keys import BlockKey

_MAX_KEYS = 10_000
"""The oldest are forgotten, and at worst found unsound once more."""


class UnsoundKeys:
    """Bounded; owner: one tier, or a node for all that are not its own."""

    def __init__(self, max_keys: int = _MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._keys: dict[tuple[bytes, BlockKey], None] = {}

    def has(self, fingerprint: bytes, key: BlockKey) -> bool:
        return (fingerprint, key) in self._keys

    def add(self, fingerprint: bytes, key: BlockKey) -> None:
        while len(self._keys) >= self._max_keys:
            del self._keys[next(iter(self._keys))]
        self._keys[fingerprint, key] = None

    def discard(self, fingerprint: bytes, key: BlockKey) -> None:
        """It was replaced."""
        self._keys.pop((fingerprint, key), None)
