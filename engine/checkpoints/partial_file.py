"""A file that is being downloaded in parts, and hashed in order while it grows.

    data      the bytes, at their offsets; beyond the journal's last line they are worthless
    journal   one line per boundary that was reached in order: offset, sha256 of all before it

A killed download leaves both. The next one hashes the data again and goes on from the last
boundary whose digest is still right, so that nothing is trusted that was not read. Knows nothing of
where the bytes come from.
"""

import hashlib
import os
import re
from pathlib import Path
from types import TracebackType
from typing import Self

_BUFFER_BYTES = 1 << 18
_LINE = re.compile(r"(\d{1,19}) ([0-9a-f]{64})")


def journal_line(position: int, sha256: str) -> str:
    """Says what all before ``position`` hashes to."""
    return f"{position} {sha256}\n"


class PartialFile:
    """Open while one download writes it: ``write`` from any thread, the rest from one but where it
    says so."""

    def __init__(self, data: Path, journal: Path) -> None:
        """Open or create both, and keep what is sound of them."""
        self._path = data
        self._data = os.open(data, os.O_RDWR | os.O_CREAT, 0o644)
        self._hash = hashlib.sha256()
        self._position = 0
        self._buffer = memoryview(bytearray(_BUFFER_BYTES))
        text = journal.read_text("ascii", "replace") if journal.exists() else ""
        lines = self._verified_lines(text)
        journal.write_text("".join(lines), "ascii")
        self._journal = os.open(journal, os.O_WRONLY | os.O_APPEND)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._data)
        os.close(self._journal)

    @property
    def position(self) -> int:
        """All bytes before it are written and hashed."""
        return self._position

    @property
    def sha256(self) -> str:
        """Of all bytes before ``position``."""
        return self._hash.hexdigest()

    def write(self, content: bytes, position: int) -> None:
        """Put ``content`` at ``position``."""
        view = memoryview(content)
        while view:
            written = os.pwrite(self._data, view, position)
            view, position = view[written:], position + written

    def advance(self, position: int) -> None:
        """Hash on to ``position``; everything before it has been written."""
        if position == self._position:
            return
        if not self._hash_until(position):
            raise OSError(f"{self._path} became shorter while it was written")
        os.write(self._journal, journal_line(position, self.sha256).encode())

    def flush(self) -> None:
        """Wait until all that is written is on the disk; from any thread."""
        os.fsync(self._data)

    def finish(self) -> str:
        """Cut off what is beyond ``position``, flush and return the sha256."""
        os.ftruncate(self._data, self._position)
        self.flush()
        return self.sha256

    def _verified_lines(self, text: str) -> list[str]:
        lines: list[str] = []
        for line in text.splitlines():
            match = _LINE.fullmatch(line)
            if match is None or int(match[1]) <= self._position:
                break
            before, position = self._hash.copy(), self._position
            if not self._hash_until(int(match[1])) or self.sha256 != match[2]:
                self._hash, self._position = before, position
                break
            lines.append(f"{line}\n")
        return lines

    def _hash_until(self, end: int) -> bool:
        """Whether the file was long enough."""
        while self._position < end:
            view = self._buffer[: min(_BUFFER_BYTES, end - self._position)]
            num_read = os.preadv(self._data, [view], self._position)
            if num_read == 0:
                return False
            self._hash.update(view[:num_read])
            self._position += num_read
        return True
