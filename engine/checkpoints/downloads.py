"""Brings remote files into a folder, resumable.

complete/<name>          finished files
records/<name>.json      their hashes
partial/<name>           being written, see partial_file.py
partial/<name>.journal
"""

import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from engine.checkpoints.errors import CorruptCheckpoint, StoreUnavailable
from engine.checkpoints.file_records import FileRecords
from engine.checkpoints.manifest import FileEntry
from engine.checkpoints.partial_file import PartialFile, journal_line
from engine.checkpoints.remote_file import RemoteFile
from engine.checkpoints.transfer import PART_BYTES, Transfer, bring_files


class Downloads:
    """The download folder of one version of one source. One process at a time uses it."""

    def __init__(self, folder: Path, *, part_bytes: int = PART_BYTES) -> None:
        self._complete = folder / "complete"
        self._partial = folder / "partial"
        self.records = FileRecords(folder / "records")
        self._part_bytes = part_bytes
        for path in (self._complete, self._partial):
            path.mkdir(parents=True, exist_ok=True)

    def fetch(self, files: Sequence[RemoteFile], *, title: str) -> dict[str, Path]:
        """Paths of all ``files`` by name, each complete and recorded.

        What an earlier call left is checked and used. Raises what the readers raise,
        `CorruptCheckpoint` for a wrong hash, `StoreUnavailable` if there is too little room.
        """
        paths = {file.name: self._complete / file.name for file in files}
        missing = [file for file in files if self.records.find(paths[file.name]) is None]
        self._check_room(missing)
        if missing:
            total = sum(file.num_bytes for file in missing)
            with _Bar(total, title) as bar:
                bring_files(missing, self._fetch, on_bytes=bar.add, part_bytes=self._part_bytes)
        return paths

    def find(self, file: RemoteFile) -> "Found | None":
        """What is here of ``file``, while nobody brings it or somebody does."""
        path = self._complete / file.name
        record = self.records.find(path)
        if record is not None:
            return Found(path, journal_line(record.bytes, record.sha256), record.bytes)
        data, journal = self._partials(file)
        try:
            return Found(data, journal.read_text("ascii", "replace"), data.stat().st_size)
        except FileNotFoundError:
            return None

    def _partials(self, file: RemoteFile) -> tuple[Path, Path]:
        return self._partial / file.name, self._partial / f"{file.name}.journal"

    def _check_room(self, files: Sequence[RemoteFile]) -> None:
        num_bytes = sum(file.num_bytes for file in files)
        for file in files:
            partial = self._partial / file.name
            if partial.exists():  # blocks of 512 bytes, whatever the file system's own are
                num_bytes -= min(file.num_bytes, partial.stat().st_blocks * 512)
        free = shutil.disk_usage(self._partial).free
        if num_bytes > free:
            raise StoreUnavailable(
                f"the download needs {num_bytes / 1e9:.2f} GB, {self._complete} has room for "
                f"{free / 1e9:.2f} GB. Make room, or choose another HEADWATER_HOME."
            )

    def _fetch(self, file: RemoteFile, transfer: Transfer) -> None:
        data, journal = self._partials(file)
        try:
            with PartialFile(data, journal) as partial:
                digest = transfer.bring(file, partial)
        except CorruptCheckpoint:
            data.unlink()
            journal.unlink()
            raise
        # In this order nothing is lost to whoever is killed between two lines.
        stat = data.stat()
        self.records.add(data, FileEntry(stat.st_size, digest, stat.st_mtime_ns))
        data.replace(self._complete / file.name)
        journal.unlink()


@dataclass(frozen=True, slots=True)
class Found:
    """A file that is here, or its beginning, and what it shall hash to."""

    data: Path
    journal: str
    """As in `PartialFile`."""
    num_bytes: int


class _Bar:
    """The progress of one call of ``fetch``, told from many threads."""

    def __init__(self, total_bytes: int, title: str) -> None:
        self._lock = threading.Lock()
        self._bar = tqdm(
            total=total_bytes, desc=title, unit="B", unit_scale=True, smoothing=0.1, disable=None
        )

    def __enter__(self) -> "_Bar":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._bar.update(num_bytes)
