"""Runs a job of the source process in this one, against a source that fails as told."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cache_tiers.rung import Rung
from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.messages import WeightFile, WeightsOrder
from engine.checkpoints.errors import SourceUnavailable
from engine.checkpoints.local import FolderSource
from engine.checkpoints.placement import bring_model
from engine.checkpoints.remote_file import RemoteFile
from engine.weights.source_job import Movement, SourceJob
from engine.weights.source_messages import Bring, Whole

URI = "test:model"


class FakeSource:
    """A folder as if it were far away; remembers how much of it was read."""

    uri = URI
    default_name = "model"

    def __init__(self, folder: Path, *, version: str = "1") -> None:
        self.version = version
        self.read_bytes = 0
        self.stop_after_bytes: int | None = None
        """Of weights."""
        self._folder = folder
        self._lock = threading.Lock()

    def stamp(self) -> str:
        return self.version

    def fetch(self, scratch: Path, folder: Path, *, sha256: str | None) -> str:
        return bring_model(self.remote_files(), scratch, folder, sha256=sha256, what=self.uri)

    def remote_files(self) -> list[RemoteFile]:
        return [self._failing(file) for file in FolderSource(self._folder).remote_files()]

    def _failing(self, file: RemoteFile) -> RemoteFile:
        if not file.name.endswith(".safetensors"):
            return file

        def read(begin: int, end: int) -> Iterator[bytes]:
            for piece in file.read(begin, end):
                with self._lock:
                    limit = self.stop_after_bytes
                    if limit is not None and self.read_bytes + len(piece) > limit:
                        raise SourceUnavailable("the source is gone")
                    self.read_bytes += len(piece)
                yield piece

        return replace(file, read=read)


@dataclass
class Node:
    """Memory and a disk that outlive runs of the job."""

    root: Path
    files: dict[str, ArrivingFile] = field(default_factory=dict)
    wholes: list[Whole] = field(default_factory=list)
    """Of the last run: one once memory, or the disk, had everything."""

    @property
    def home(self) -> Path:
        return self.root / "home"

    def run(
        self,
        source: FakeSource,
        *,
        rung: Rung = Rung.STAGED,
        keep_on_disk: bool = False,
        source_sha256: str | None = None,
        weights_sha256: str | None = None,
    ) -> Whole:
        self.wholes.clear()
        order = WeightsOrder(
            "model", URI, rung, source_sha256=source_sha256, weights_sha256=weights_sha256
        )
        bring = Bring(
            order=order,
            home=str(self.home),
            scratch=str(self.root / "scratch"),
            to_memory=rung >= Rung.STAGED,
            keep_on_disk=keep_on_disk,
            max_bytes_per_s=None,
        )
        SourceJob(bring, Movement(), lambda _: source).run(self._open, self.wholes.append)
        [whole] = self.wholes
        return whole

    def contents(self) -> dict[str, bytes]:
        return {
            name: Path(f"/proc/self/fd/{file.fd}").read_bytes() for name, file in self.files.items()
        }

    def close(self) -> None:
        for file in self.files.values():
            file.close()

    def _open(self, files: Sequence[WeightFile]) -> list[Path]:
        for file in files:
            if file.name not in self.files:
                self.files[file.name] = ArrivingFile.in_memory(file)
        return [Path(f"/proc/self/fd/{self.files[file.name].fd}") for file in files]
