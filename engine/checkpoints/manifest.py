"""``headwater.json``, the list of a checkpoint's files with their sizes and hashes.

It is written last, so that a folder with a manifest is a complete one. Knows nothing of what the
files mean.
"""

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from engine.checkpoints.errors import CorruptCheckpoint, HashMismatch, MissingCheckpoint
from engine.checkpoints.extras import is_extra

MANIFEST_NAME = "headwater.json"
CONVERTER_VERSION = 1
"""Raised when the conversion of the same source would give other files."""
_NUM_HASHERS = 4


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file as it was written."""

    bytes: int
    sha256: str
    mtime_ns: int = 0
    """When it was written: a file that still has this time and size is taken for unchanged."""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a checkpoint holds and where it came from."""

    source: str
    source_sha256: str
    source_stamp: str
    """Changes when a local source is edited; empty for a source that is immutable by name."""
    files: dict[str, FileEntry]
    weights_sha256: str
    converter_version: int
    extras: dict[str, FileEntry] = {}
    """See `extras.py`: what came along. The checkpoint is whole without."""

    @property
    def all_files(self) -> dict[str, FileEntry]:
        """All that a copy of the folder holds beside headwater.json."""
        return {**self.files, **self.extras}


def sha256_of_file(path: Path) -> str:
    """Hex digest of the file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_listing(digests: Mapping[str, str]) -> str:
    """Digest of several files: of their ``sha256sum`` lines, sorted by name. One keeps its own."""
    if len(digests) == 1:
        return next(iter(digests.values()))
    lines = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    return hashlib.sha256(lines.encode()).hexdigest()


def entry_of_file(path: Path) -> FileEntry:
    """Hash the file as it is now."""
    stat = path.stat()  # before reading: a change meanwhile then shows
    return FileEntry(stat.st_size, sha256_of_file(path), stat.st_mtime_ns)


def build_manifest(
    folder: Path,
    *,
    source: str,
    source_sha256: str,
    source_stamp: str,
    find_entry: Callable[[Path], FileEntry | None] = lambda _: None,
) -> Manifest:
    """Hash every file in ``folder`` but those that ``find_entry`` knows already."""
    paths = sorted(path for path in folder.iterdir() if path.name != MANIFEST_NAME)
    with ThreadPoolExecutor(_NUM_HASHERS, "hasher") as hashers:
        entries = hashers.map(lambda path: find_entry(path) or entry_of_file(path), paths)
        found = {path.name: entry for path, entry in zip(paths, entries, strict=True)}
    return manifest_of(found, source=source, source_sha256=source_sha256, source_stamp=source_stamp)


def manifest_of(
    found: Mapping[str, FileEntry], *, source: str, source_sha256: str, source_stamp: str
) -> Manifest:
    """Of a folder that holds what was ``found``."""
    files = {name: entry for name, entry in found.items() if not is_extra(name)}
    weights = {name: f.sha256 for name, f in files.items() if name.endswith(".safetensors")}
    return Manifest(
        source=source,
        source_sha256=source_sha256,
        source_stamp=source_stamp,
        files=files,
        weights_sha256=sha256_of_listing(weights),
        converter_version=CONVERTER_VERSION,
        extras={name: entry for name, entry in found.items() if is_extra(name)},
    )


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write ``headwater.json`` into ``folder``."""
    (folder / MANIFEST_NAME).write_bytes(encode_manifest(manifest))


def encode_manifest(manifest: Manifest) -> bytes:
    """Content of ``headwater.json``."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def read_manifest(folder: Path) -> Manifest:
    """Read ``headwater.json``; raises `MissingCheckpoint` or `CorruptCheckpoint`."""
    path = folder / MANIFEST_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingCheckpoint(
            f"no checkpoint at {folder}: it has no {MANIFEST_NAME}. Pull the model first "
            "(headwater models pull SOURCE), or correct the path."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptCheckpoint(
            f"{path} is not a checkpoint manifest ({error}). Delete {folder} and pull the model "
            "again."
        ) from error


def check_sha256(path: Path, expected: str | None, *, what: str) -> str:
    """The file's sha256; raises `HashMismatch` if another one is expected."""
    actual = sha256_of_file(path)
    if expected is not None and expected.lower() != actual:
        raise HashMismatch(
            f"{what} has sha256 {actual}, but {expected} is pinned. Nothing of it was used. "
            "Check where it comes from before you change the pin."
        )
    return actual
