"""Segment files of which much came back wrong: kept aside to find out why, few and small.

Must not know what they held.
"""

from collections.abc import Callable, Mapping

from cache_tiers.disk.files import Files
from cache_tiers.disk.segment import Segment

PREFIX = "quarantine-"
_MAX_FILES = 2
_MAX_SHARE = 0.125
"""Of the folder's bytes."""


class Quarantine:
    """Of one folder."""

    def __init__(self, files: Files, max_bytes: int) -> None:
        self._files = files
        self._max_bytes = max_bytes * _MAX_SHARE
        self._kept: dict[str, int] = {}

    def adopt(self, found: Mapping[str, int]) -> None:
        """What an earlier process left: names, oldest first, and bytes."""
        self._kept |= found

    @property
    def num_bytes(self) -> int:
        return sum(self._kept.values())

    def admit(self, segment: Segment) -> Callable[[], None]:
        """Count a segment's file in, and older ones out if they are too much. Returns the work,
        which blocks and may raise ``OSError``.
        """
        new_name = PREFIX + segment.name
        self._kept[new_name] = segment.num_bytes
        removed: list[str] = []
        while len(self._kept) > _MAX_FILES or self.num_bytes > self._max_bytes:
            removed.append(next(iter(self._kept)))
            del self._kept[removed[-1]]

        def move() -> None:
            self._files.rename(segment.name, new_name)
            for name in removed:
                self._files.remove(name)

        return move
