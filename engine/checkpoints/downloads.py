"""Brings remote files into a folder: in parts, in parallel, hashed on the way, resumable.

    complete/<name>          finished files
    records/<name>.json      their hashes
    partial/<name>           being written, see partial_file.py
    partial/<name>.journal

Several files are on their way at once; each has one thread that hashes its parts in order while the
readers' threads fetch the next ones, so that neither the network nor a processor waits for the
other. No part is held in memory: it is written piece by piece, and hashed out of the page cache.
"""

import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from engine.checkpoints.errors import (
    CorruptCheckpoint,
    SourceUnavailable,
    StoreUnavailable,
    TransferInterrupted,
)
from engine.checkpoints.file_records import FileRecords
from engine.checkpoints.manifest import FileEntry
from engine.checkpoints.partial_file import PartialFile

PART_BYTES = 8 << 20
NUM_READERS = 12
NUM_FILES_AT_ONCE = 3
_MAX_PARTS_AHEAD = 8
"""Of one file: what a killed download loses at most, since parts count in order only."""
_NUM_ATTEMPTS = 6
_FIRST_PAUSE_S = 0.25
_FLUSH_BYTES = 64 << 20
"""Of a file, at a time: the disk works while the network does, not after it."""
_TICK_S = 0.5
"""So often the part that is next in order is hashed as far as it has come."""

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
            with (
                _Progress(total, title) as progress,
                ThreadPoolExecutor(NUM_READERS, "reader") as readers,
                ThreadPoolExecutor(NUM_FILES_AT_ONCE, "hasher") as hashers,
            ):
                # Small files last: a long one then never starts when all others are done.
                missing.sort(key=lambda file: -file.num_bytes)
                tasks = [hashers.submit(self._fetch, file, readers, progress) for file in missing]
                _join(tasks, progress)
        return paths

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

    def _fetch(self, file: RemoteFile, readers: ThreadPoolExecutor, progress: "_Progress") -> None:
        data, journal = self._partial / file.name, self._partial / f"{file.name}.journal"
        with PartialFile(data, journal) as partial:
            progress.add(partial.position)
            self._fetch_parts(file, partial, readers, progress)
            digest = partial.finish()
        if file.sha256 is not None and digest != file.sha256:
            data.unlink()
            journal.unlink()
            raise CorruptCheckpoint(
                f"{file.name} arrived with sha256 {digest} instead of {file.sha256}. Pull again; "
                "if it happens twice, the source is damaged."
            )
        # In this order nothing is lost to whoever is killed between two lines.
        stat = data.stat()
        self.records.add(data, FileEntry(stat.st_size, digest, stat.st_mtime_ns))
        data.replace(self._complete / file.name)
        journal.unlink()

    def _fetch_parts(
        self,
        file: RemoteFile,
        partial: PartialFile,
        readers: ThreadPoolExecutor,
        progress: "_Progress",
    ) -> None:
        starts = iter(range(partial.position, file.num_bytes, self._part_bytes))
        under_way: deque[tuple[_Part, Future[None]]] = deque()
        flush: Future[None] = readers.submit(partial.flush)
        flush_at = partial.position + _FLUSH_BYTES
        try:
            while True:
                while (
                    len(under_way) < _MAX_PARTS_AHEAD and (begin := next(starts, None)) is not None
                ):
                    part = _Part(begin, min(begin + self._part_bytes, file.num_bytes))
                    task = readers.submit(_read_part, file, partial, part, progress)
                    under_way.append((part, task))
                if not under_way:
                    return
                part, task = under_way[0]
                wait([task], timeout=_TICK_S)
                if task.done():
                    task.result()
                    under_way.popleft()
                partial.advance(part.position)
                if partial.position >= flush_at and flush.done():
                    flush = readers.submit(partial.flush)
                    flush_at = partial.position + _FLUSH_BYTES
        except BaseException:
            progress.stop()
            raise
        finally:
            wait([flush, *(task for _, task in under_way)])  # they use a file that is closed next


@dataclass(slots=True)
class _Part:
    """What one task reads."""

    position: int
    """All of the part before it is written."""
    end: int


def _read_part(file: RemoteFile, partial: PartialFile, part: _Part, progress: "_Progress") -> None:
    """Write one part; an attempt goes on where the one before broke off."""
    num_failures = 0
    while part.position < part.end:
        progress.check()
        try:
            for piece in file.read(part.position, part.end):
                progress.check()
                if len(piece) > part.end - part.position:
                    raise SourceUnavailable(f"{file.name}: the source sent more than it was asked")
                partial.write(piece, part.position)
                part.position += len(piece)
                progress.add(len(piece))
                if piece:
                    num_failures = 0
            if part.position < part.end:
                raise TransferInterrupted("the source sent less than it was asked for")
        except TransferInterrupted as error:
            num_failures += 1
            if num_failures == _NUM_ATTEMPTS:
                raise SourceUnavailable(
                    f"{file.name} breaks off again and again ({error}). What arrived is kept: pull "
                    "again to go on."
                ) from error
            progress.pause(_FIRST_PAUSE_S * 2**num_failures)


def _join(tasks: Sequence[Future[None]], progress: "_Progress") -> None:
    """Wait for all; of several failures raise one that isn't only a consequence."""
    try:
        wait(tasks, return_when=FIRST_EXCEPTION)
    finally:  # also at Ctrl-C, which arrives here
        progress.stop()
        for task in tasks:
            task.cancel()
    wait(tasks)
    ended = [task.exception() for task in tasks if not task.cancelled()]
    failures = [error for error in ended if error is not None]
    if failures:
        raise next((e for e in failures if not isinstance(e, _StoppedError)), failures[0])


class _StoppedError(Exception):
    """Another part failed."""


class _Progress:
    """The bar of one call of ``fetch``, and its brake."""

    def __init__(self, total_bytes: int, title: str) -> None:
        self._lock = threading.Lock()
        self._is_stopped = threading.Event()
        self._bar = tqdm(
            total=total_bytes, desc=title, unit="B", unit_scale=True, smoothing=0.1, disable=None
        )

    def __enter__(self) -> "_Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._bar.update(num_bytes)

    def stop(self) -> None:
        self._is_stopped.set()

    def check(self) -> None:
        if self._is_stopped.is_set():
            raise _StoppedError

    def pause(self, duration_s: float) -> None:
        self._is_stopped.wait(duration_s)
        self.check()
