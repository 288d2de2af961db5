"""What is known of files that are complete: hashes that need not be computed twice.

One small JSON file per known file, in a folder that outlives a killed pull. A file that still has
the recorded size and time is taken for unchanged, as everywhere in the store.
"""

from pathlib import Path

import msgspec

from engine.checkpoints.manifest import FileEntry


class FileRecords:
    """Records by file name; the name's folder doesn't matter, so that a hard link is known too."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def find(self, path: Path) -> FileEntry | None:
        """The record of ``path`` as it is now, if there is one."""
        try:
            entry = msgspec.json.decode(self._record(path).read_bytes(), type=FileEntry)
            stat = path.stat()
        except (OSError, msgspec.DecodeError):
            return None
        return entry if (stat.st_size, stat.st_mtime_ns) == (entry.bytes, entry.mtime_ns) else None

    def add(self, path: Path, entry: FileEntry) -> None:
        """Record what ``path`` holds."""
        record = self._record(path)
        fresh = record.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(entry))
        fresh.replace(record)

    def _record(self, path: Path) -> Path:
        return self._folder / f"{path.name}.json"
