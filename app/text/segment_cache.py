"""Remembers the token ids of pieces of text, so that a conversation's known part is not tokenized
again. Bounded in bytes; used from any thread. Keeps no text. Must not know tokenizers.
"""

from __future__ import annotations

import hashlib
import threading
from array import array
from collections import OrderedDict
from typing import TypeAlias

TokenIds: TypeAlias = "array[int]"
"""4 bytes each, of type ``I``."""

_ENTRY_BYTES = 250
"""Measured, about: the entry's key, its array without the ids, and its place in the dictionary."""


class SegmentCache:
    """Least recently used goes first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._ids_of: OrderedDict[bytes, TokenIds] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def get(self, key: bytes) -> TokenIds | None:
        with self._lock:
            token_ids = self._ids_of.get(key)
            if token_ids is not None:
                self._ids_of.move_to_end(key)
            return token_ids

    def put(self, key: bytes, token_ids: TokenIds) -> None:
        """``token_ids`` must not change any more."""
        with self._lock:
            replaced = self._ids_of.pop(key, None)
            if replaced is not None:
                self._num_bytes -= _num_bytes(replaced)
            self._ids_of[key] = token_ids
            self._num_bytes += _num_bytes(token_ids)
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= _num_bytes(self._ids_of.popitem(last=False)[1])


def segment_key(text: str, *, is_first: bool) -> bytes:
    """A digest: equal only for equal text at an equal place."""
    return hashlib.blake2b(
        text.encode(), digest_size=16, person=b"first" if is_first else b"inner"
    ).digest()


def _num_bytes(token_ids: TokenIds) -> int:
    return len(token_ids) * token_ids.itemsize + _ENTRY_BYTES
