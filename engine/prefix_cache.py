"""The map from chained block keys to the blocks that hold their KV, and its events for routers.

A key stands for all tokens since the start of the prompt, so the longest prefix is found by looking
keys up one after another. Must not know reference counts, tokens or sequences.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cache_tiers.keys import BlockKey
from engine.messages import KEY_STRIDE, CacheEvents


@dataclass(frozen=True, slots=True)
class CachedBlock:
    """Where a key's KV lies."""

    block_id: int
    chain_len: int
    """Blocks from the start of the prompt to this one, itself included."""


class PrefixCache:
    """Owner of the key map. ``_entries`` is the truth; the reverse map is derived from it."""

    def __init__(self) -> None:
        self._entries: dict[BlockKey, CachedBlock] = {}
        self._key_of_block: dict[int, BlockKey] = {}
        self._uncommitted: list[BlockKey] = []
        self._changes: dict[BlockKey, bool] = {}
        """Keys that changed since the last events: whether they are here now."""
        self._num_events = 0

    @property
    def block_ids(self) -> Iterable[int]:
        return self._key_of_block.keys()

    def match(self, keys: Sequence[BlockKey]) -> list[int]:
        """Blocks of the longest cached prefix of the chain ``keys``."""
        block_ids: list[int] = []
        for key in keys:
            entry = self._entries.get(key)
            if entry is None:
                break
            block_ids.append(entry.block_id)
        return block_ids

    def insert(self, key: BlockKey, block_id: int, chain_len: int) -> bool:
        """Make a computed block addressable; ``False`` if another block holds this key already."""
        if key in self._entries:
            return False
        # Noted before it is done, so that a rollback finds it wherever this is interrupted.
        self._uncommitted.append(key)
        self._entries[key] = CachedBlock(block_id, chain_len)
        self._key_of_block[block_id] = key
        self._note(key, chain_len, is_stored=True)
        return True

    def evict(self, block_id: int) -> None:
        """Forget a block whose memory is handed out again."""
        key = self._key_of_block.pop(block_id)
        entry = self._entries.pop(key)
        self._note(key, entry.chain_len, is_stored=False)

    def commit(self) -> None:
        """The step that inserted blocks is complete: they stay."""
        self._uncommitted.clear()

    def rollback(self) -> None:
        """Forget what was inserted since the last commit, from whatever state a failure left."""
        for key in self._uncommitted:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._note(key, entry.chain_len, is_stored=False)
        self._uncommitted.clear()
        self._key_of_block = {entry.block_id: key for key, entry in self._entries.items()}

    def take_events(self) -> CacheEvents | None:
        """What changed since the last call. A key that came and went counts as evicted."""
        if not self._changes:
            return None
        self._num_events += 1
        events = CacheEvents(
            sequence=self._num_events,
            stored=[key for key, is_stored in self._changes.items() if is_stored],
            evicted=[key for key, is_stored in self._changes.items() if not is_stored],
        )
        self._changes.clear()
        return events

    def check_integrity(self) -> None:
        """Raise ``AssertionError`` unless keys and blocks map one to one."""
        derived = {entry.block_id: key for key, entry in self._entries.items()}
        assert derived == self._key_of_block, "the reverse map differs from the key map"
        assert len(derived) == len(self._entries), "two keys share a block"
        assert not self._uncommitted, "blocks of an unfinished step are addressable"

    def _note(self, key: BlockKey, chain_len: int, *, is_stored: bool) -> None:
        if chain_len % KEY_STRIDE == 0:
            self._changes[key] = is_stored
