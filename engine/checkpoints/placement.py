"""Brings a source's files into the new checkpoint's folder: downloaded, then linked, or converted
if they are GGUF files.
"""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine.checkpoints.downloads import Downloads
from engine.checkpoints.errors import HashMismatch, SourceUnavailable
from engine.checkpoints.extras import is_extra
from engine.checkpoints.file_records import FileRecords
from engine.checkpoints.gguf_convert import convert_gguf
from engine.checkpoints.layout import DESCRIPTION_FILES, check_sizes
from engine.checkpoints.manifest import sha256_of_listing
from engine.checkpoints.remote_file import RemoteFile
from engine.checkpoints.soundness import check_description


def bring_model(
    files: Sequence[RemoteFile], scratch: Path, folder: Path, *, sha256: str | None, what: str
) -> str:
    """Download the files of one model and place them, see ``place_files``.

    The small files come first: a model that the engine can't run is refused before its weights are
    downloaded.
    """
    check_sizes({file.name: file.num_bytes for file in files}, where=what)
    downloads = Downloads(scratch)
    described = [file for file in files if file.name in DESCRIPTION_FILES]
    if described:  # a GGUF file describes itself
        check_description(downloads.fetch(described, title="Looking"), where=what)
    paths = downloads.fetch(files, title="Downloading")
    return place_files(paths, downloads.records, folder, sha256=sha256, what=what)


def place_files(
    paths: Mapping[str, Path],
    records: FileRecords,
    folder: Path,
    *,
    sha256: str | None,
    what: str,
) -> str:
    """Fill ``folder`` with the files of one model, all recorded; return the source's sha256.

    That is the hash of the one file, or of the list of several, what travels along (`extras.py`)
    not counted. Raises `HashMismatch` before
    anything is used if ``sha256`` is another one.
    """
    digests: dict[str, str] = {}
    for name, path in paths.items():
        record = records.find(path)
        if record is None:
            raise SourceUnavailable(f"{path} was changed while it was read: pull again.")
        digests[name] = record.sha256
    digest = check_source_pin(digests, sha256, what=what)
    ggufs = [path for name, path in paths.items() if name.endswith(".gguf")]
    if ggufs:
        convert_gguf(ggufs[0], folder)  # it finds its other shards by itself
        return digest
    for name, path in paths.items():
        link_or_copy(path, folder / name)
    return digest


def check_source_pin(digests: Mapping[str, str], pin: str | None, *, what: str) -> str:
    """The sha256 of the source whose files have these; raises `HashMismatch`."""
    digest = sha256_of_listing({name: digests[name] for name in digests if not is_extra(name)})
    if pin is not None and pin.lower() != digest:
        raise HashMismatch(
            f"{what} has sha256 {digest}, but {pin} is pinned. Nothing of it was used. Check "
            "where it comes from before you change the pin."
        )
    return digest


def link_or_copy(source: Path, target: Path) -> None:
    """A hard link if the file system has them, otherwise a copy."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)
