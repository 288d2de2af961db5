"""One file of a source: how large it is, how its bytes are read, and what they must hash to."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

ReadRange = Callable[[int, int], Iterator[bytes]]
"""Yields the bytes from ``begin`` to ``end``, in pieces of at most a megabyte. Raises
`TransferInterrupted` if it is worth another attempt, otherwise another `CheckpointError`."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file of a source."""

    name: str
    num_bytes: int
    read: ReadRange
    sha256: str | None = None
    """Of the content, where the source says it."""
