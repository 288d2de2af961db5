"""What can go wrong with a checkpoint: the branch ``CheckpointError`` of ``engine.errors``.

Every message says what was wrong and what to do.
"""

from engine.errors import CheckpointError

__all__ = [
    "CheckpointError",
    "CorruptCheckpoint",
    "HashMismatch",
    "MissingCheckpoint",
    "SourceUnavailable",
    "StoreUnavailable",
    "TransferInterrupted",
    "UnsupportedCheckpoint",
]


class MissingCheckpoint(CheckpointError):
    """There is no checkpoint at this path."""


class CorruptCheckpoint(CheckpointError):
    """A file is truncated, malformed or not the one that was written."""


class HashMismatch(CheckpointError):
    """The content isn't the pinned one."""


class SourceUnavailable(CheckpointError):
    """The source can't be reached, doesn't exist or isn't understood."""


class TransferInterrupted(SourceUnavailable):
    """The other side broke off, or was too busy; a new attempt may succeed."""


class UnsupportedCheckpoint(CheckpointError):
    """A sound file of a kind the engine can't run."""


class StoreUnavailable(CheckpointError):
    """The store's own folder can't be written."""
