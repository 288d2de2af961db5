"""A model's files in the parent's memory, while they are brought there.

Each is written by ``/proc/<pid>/fd/<n>`` as a partial download is, with its journal in a folder: so
who comes after a killed process hashes what is there, and goes on. What an earlier download has
left on the disk is copied before the source is asked.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from engine.checkpoints.downloads import Downloads
from engine.checkpoints.errors import CorruptCheckpoint
from engine.checkpoints.manifest import FileEntry
from engine.checkpoints.partial_file import PartialFile
from engine.checkpoints.remote_file import RemoteFile
from engine.checkpoints.safetensors_file import check_safetensors
from engine.checkpoints.transfer import Transfer, bring_files

_COPY_BYTES = 64 << 20
_READ_BYTES = 1 << 20


class MemoryFiles:
    """``bring`` fills them; afterwards they can be read, also when the parent has sealed them."""

    def __init__(
        self, targets: Mapping[str, Path], journals: Path, *, left: Downloads | None
    ) -> None:
        """``targets``: the places by name. ``left``: downloads on the disk of the same version."""
        self._targets = targets
        self._journals = journals
        self._left = left
        self._partials: dict[str, PartialFile] = {}
        self._digests: dict[str, str] = {}
        # Opened now: the parent may let go of a file that is still written to the disk.
        self._readers = {name: os.open(path, os.O_RDONLY) for name, path in targets.items()}
        journals.mkdir(parents=True, exist_ok=True)

    @property
    def positions(self) -> tuple[int, ...]:
        """Of each file, in order: all before it is written and hashed."""
        partials = [self._partials.get(name) for name in self._targets]
        return tuple(0 if partial is None else partial.position for partial in partials)

    def bring(self, files: Sequence[RemoteFile], on_bytes: Callable[[int], None]) -> None:
        """Raises what the readers raise, and `CorruptCheckpoint`."""
        bring_files(files, self._bring_one, on_bytes=on_bytes)

    def entries(self) -> dict[str, FileEntry]:
        """Of all files, which are whole."""
        stats = {name: os.fstat(fd) for name, fd in self._readers.items()}
        return {
            name: FileEntry(stat.st_size, self._digests[name], stat.st_mtime_ns)
            for name, stat in stats.items()
        }

    def as_remote(self, name: str) -> RemoteFile:
        """One file that is whole, for who copies it."""
        fd = self._readers[name]

        def read(begin: int, end: int) -> Iterator[bytes]:
            while begin < end:
                piece = os.pread(fd, min(_READ_BYTES, end - begin), begin)
                yield piece
                begin += len(piece)

        return RemoteFile(name, os.fstat(fd).st_size, read, self._digests[name])

    def _bring_one(self, file: RemoteFile, transfer: Transfer) -> None:
        target, journal = self._targets[file.name], self._journals / f"{file.name}.journal"
        if not journal.exists() and self._left is not None:
            self._copy_left(self._left, file, target, journal)
        with PartialFile(target, journal) as partial:
            self._partials[file.name] = partial
            try:
                digest = transfer.bring(file, partial)
                if file.name.endswith(".safetensors"):
                    _check_weights(file.name, target)
            except CorruptCheckpoint:
                journal.unlink()
                raise
        self._digests[file.name] = digest

    def _copy_left(self, left: Downloads, file: RemoteFile, target: Path, journal: Path) -> None:
        """``journal`` then says what the copy must hash to: it is checked before it is used."""
        found = left.find(file)
        if found is None or not found.journal:
            return
        try:
            data = found.data.open("rb")
        except FileNotFoundError:  # a pull has finished it meanwhile
            return
        with data as source, target.open("r+b") as memory:
            position, end = 0, min(found.num_bytes, file.num_bytes)
            while position < end:
                size = min(_COPY_BYTES, end - position)
                num_copied = os.sendfile(memory.fileno(), source.fileno(), position, size)
                if num_copied == 0:
                    break
                position += num_copied
        journal.write_text(found.journal, "ascii")


def _check_weights(name: str, path: Path) -> None:
    try:
        check_safetensors(path)
    except CorruptCheckpoint as error:
        raise CorruptCheckpoint(str(error).replace(str(path), name)) from error
