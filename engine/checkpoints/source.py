"""What ``pull`` needs of a place that models come from.

A new kind of place is one file beside this one and one line in ``pull.py``.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from engine.checkpoints.remote_file import RemoteFile


class Source(Protocol):
    """One model at one place. Making one asks nobody."""

    @property
    def uri(self) -> str:
        """Full name, recorded in the manifest: equal names mean the same model."""
        ...

    @property
    def default_name(self) -> str:
        """Name of the checkpoint when the caller gives none."""
        ...

    def stamp(self) -> str:
        """Changes when the source's content does; empty if its name is immutable. Reads no data.

        Raises `SourceUnavailable` if that can't be found out now.
        """
        ...

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        """Write the files, all but the manifest, into ``folder``; return the source's sha256.

        Called after ``stamp``, and brings the version that it named. ``scratch`` is on the same
        file system and kept for the next attempt at this version if this one fails half way: it
        holds what that one left. Hashes that are known by then may stand in ``scratch/records``
        (`FileRecords`). Raises `HashMismatch` before anything of a source that isn't ``sha256`` is
        used, and any other `CheckpointError`.
        """
        ...


@runtime_checkable
class FileSource(Protocol):
    """A source whose files may be read by whoever wants them, also without a folder for them."""

    def remote_files(self) -> Sequence[RemoteFile]:
        """All of the model, called after ``stamp``: of the version that it named."""
        ...


@runtime_checkable
class DescribedSource(Protocol):
    """A source that can say what the model is without bringing its weights."""

    @property
    def uri(self) -> str: ...

    def fetch_description(self, scratch: Path) -> Mapping[str, Path]:
        """Bring the small files (config.json, generation_config.json, ...); paths by name."""
        ...
