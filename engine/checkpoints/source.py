"""What ``pull`` needs of a place that models come from.

A new kind of place is one file beside this one and one line in ``pull.py``.
"""

from pathlib import Path
from typing import Protocol


class Source(Protocol):
    """One model at one place."""

    @property
    def uri(self) -> str:
        """Full name, recorded in the manifest: equal names mean the same model."""
        ...

    @property
    def default_name(self) -> str:
        """Name of the checkpoint when the caller gives none."""
        ...

    def stamp(self) -> str:
        """Changes when a local source is edited; empty if its name is immutable. Reads no data."""
        ...

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        """Write the files, all but the manifest, into ``folder``; return the source's sha256.

        ``scratch`` is an empty folder on the same file system, removed afterwards. Raises
        `HashMismatch` before anything of a source that isn't ``sha256`` is used, and any other
        `CheckpointError`.
        """
        ...
