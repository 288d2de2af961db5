"""Opens the arena of the node's cache on a rank other than 0, which says nothing more there."""

from pathlib import Path

from cache_tiers.arena import ArenaMap
from cache_tiers.block_image import ImageLayout
from cache_tiers.messages import Open
from cache_tiers.node_client import connect
from engine.messages import KEY_STRIDE

_CONNECT_TIMEOUT_S = 1.0
"""Rank 0 has just been answered by the same process; it waits for this, and all streams with it."""


class FollowerArena:
    """Owner of this rank's mapping."""

    def __init__(self, rank: int, model: str) -> None:
        self._rank = rank
        self._model = model
        self._map: ArenaMap | None = None

    def open(self, layout: ImageLayout, socket_path: str) -> memoryview:
        """Map the arena behind ``socket_path``; views of the one before stay usable. Raises
        ``TierError``.
        """
        opening = Open(layout, self._rank, self._model, KEY_STRIDE)
        pipe, arena = connect(Path(socket_path), opening, _CONNECT_TIMEOUT_S)
        pipe.close()
        self.close()
        self._map = arena
        return arena.memory

    def close(self) -> None:
        """Idempotent. While somebody has a view the mapping stays."""
        if self._map is not None:
            self._map.close()
            self._map = None
