"""What can go wrong with a checkpoint. Every message says what was wrong and what to do.

CheckpointError
├── MissingCheckpoint      there is no checkpoint at this path
├── CorruptCheckpoint      a file is truncated, malformed or not the one that was written
├── HashMismatch           the content isn't the pinned one
├── SourceUnavailable      the source can't be reached, doesn't exist or isn't understood
├── UnsupportedCheckpoint  a sound file of a kind the engine can't run
└── StoreUnavailable       the store's own folder can't be written
"""


class CheckpointError(Exception):
    """Base of this package's errors."""


class MissingCheckpoint(CheckpointError):
    """There is no checkpoint at this path."""


class CorruptCheckpoint(CheckpointError):
    """A file is truncated, malformed or not the one that was written."""


class HashMismatch(CheckpointError):
    """The content isn't the pinned one."""


class SourceUnavailable(CheckpointError):
    """The source can't be reached, doesn't exist or isn't understood."""


class UnsupportedCheckpoint(CheckpointError):
    """A sound file of a kind the engine can't run."""


class StoreUnavailable(CheckpointError):
    """The store's own folder can't be written."""
