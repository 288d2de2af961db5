"""Brings one model from its source: into memory, checked as by a pull, then onto the disk.

Or onto the disk alone, where that is ordered or the source's files aren't those of a checkpoint.
Must not know who asks, nor whose memory it is.
"""

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cache_tiers.weights.messages import Stage, WeightFile
from engine.checkpoints.downloads import Downloads
from engine.checkpoints.errors import HashMismatch
from engine.checkpoints.extras import is_extra
from engine.checkpoints.layout import DESCRIPTION_FILES, check_sizes
from engine.checkpoints.local import FolderSource, file_at
from engine.checkpoints.manifest import (
    MANIFEST_NAME,
    encode_manifest,
    manifest_of,
    sha256_of_file,
    sha256_of_listing,
)
from engine.checkpoints.placement import check_source_pin, link_or_copy
from engine.checkpoints.pull import create_source, pull_from, version_of
from engine.checkpoints.remote_file import RemoteFile
from engine.checkpoints.soundness import check_description, settle_description
from engine.checkpoints.source import FileSource, Source
from engine.checkpoints.staging import folder_of_version, staging_root
from engine.checkpoints.store import Checkpoint
from engine.weights.memory_files import MemoryFiles
from engine.weights.relayed_source import RelayedSource, watched
from engine.weights.source_messages import Bring, Whole
from engine.weights.throttle import Throttle

_LOWEST_PRIORITY = 19


@dataclass(slots=True)
class Movement:
    """How far a job is; read by another thread."""

    num_done_bytes: int = 0
    num_bytes: int = 0
    memory: MemoryFiles | None = None
    """None: bytes go to the disk."""

    def add(self, num_bytes: int) -> None:
        self.num_done_bytes += num_bytes  # of many threads: it is only shown

    def begin(self, num_bytes: int, memory: MemoryFiles | None) -> None:
        self.num_done_bytes, self.num_bytes, self.memory = 0, num_bytes, memory


@dataclass(frozen=True, slots=True)
class _Model:
    """What is to be in memory."""

    small: dict[str, RemoteFile]
    """As the source has them, by name, out of a folder of ours."""
    files: list[RemoteFile]
    """All of the checkpoint: small ones as the engine wants them, weights, what travels along."""


class SourceJob:
    """One run of the child process. Its methods raise `CheckpointError` or `OSError`."""

    def __init__(
        self,
        bring: Bring,
        movement: Movement,
        create: Callable[[str], Source] = create_source,
    ) -> None:
        self._bring = bring
        self._order = bring.order
        self._movement = movement
        self._home = Path(bring.home)
        self._throttle = Throttle(bring.max_bytes_per_s)
        self._stages: list[Stage] = []
        self._lap_began_s = time.monotonic()
        self._origin: Source = create(bring.order.source)
        self._stamp = ""
        self._scratch = Path()

    def run(
        self,
        ask: Callable[[Sequence[WeightFile]], Sequence[Path]],
        say_whole: Callable[[Whole], None],
    ) -> None:
        """``ask`` for places in memory, if it goes there; ``say_whole`` before the disk follows."""
        self._stamp = self._origin.stamp()
        self._scratch = self._open_scratch()
        files = self._origin.remote_files() if isinstance(self._origin, FileSource) else []
        self._end_stage("listing")
        model = None
        if self._bring.to_memory and files and not _has_gguf(files):
            check_sizes({file.name: file.num_bytes for file in files}, where=self._origin.uri)
            self._check_known_pins(files)
            model = self._describe(files)
        if model is None:
            say_whole(self._pull_to_disk(files))
            return
        targets = ask([WeightFile(file.name, file.num_bytes, file.sha256) for file in model.files])
        memory = self._fill(model, targets)
        say_whole(self._checked(model, memory))
        if self._bring.keep_on_disk:
            self._write_to_disk(model, memory)

    def _open_scratch(self) -> Path:
        """The folder of this version; those of others are deleted."""
        root = Path(self._bring.scratch)
        kept = root / folder_of_version(version_of(self._origin.uri, self._stamp))
        kept.mkdir(parents=True, exist_ok=True)
        for path in root.iterdir():
            if path != kept:
                shutil.rmtree(path)
        return kept

    def _check_known_pins(self, files: Sequence[RemoteFile]) -> None:
        """Before anything is read, where the source says hashes."""
        known = {file.name: file.sha256 for file in files if file.sha256 is not None}
        weights = [file.name for file in files if file.name.endswith(".safetensors")]
        if known.keys() >= set(weights):
            self._check_revision(sha256_of_listing({name: known[name] for name in weights}))

    def _check_revision(self, revision: str) -> None:
        pin = self._order.weights_sha256
        if pin is not None and pin.lower() != revision:
            raise HashMismatch(
                f"the weights of {self._origin.uri} have sha256 {revision}, but {pin} is "
                f"pinned for {self._order.model}. Nothing of it was used. Name the pinned model's "
                "source, or correct weights_sha256."
            )

    def _describe(self, files: Sequence[RemoteFile]) -> _Model | None:
        """Bring and check the small files; None if the source holds weights that the model lacks,
        which a pull leaves out once it has hashed them for the source's own sha256."""
        where = self._origin.uri
        weights = {file.name for file in files if file.name.endswith(".safetensors")}
        small = [file for file in files if file.name not in weights and not is_extra(file.name)]
        slowed = [watched(file, self._throttle) for file in small]
        downloads = Downloads(self._scratch / "small")
        first = [file for file in slowed if file.name in DESCRIPTION_FILES]
        check_description(downloads.fetch(first, title="Looking"), where=where)
        paths = downloads.fetch(slowed, title="Looking")
        settled = self._scratch / "settled"
        shutil.rmtree(settled, ignore_errors=True)
        settled.mkdir()
        for name, path in paths.items():
            link_or_copy(path, settled / name)
        named = settle_description(settled, weights, where=where)
        self._end_stage("description", sum(file.num_bytes for file in small))
        if named != weights:
            return None
        ready = [_known(path) for path in sorted(settled.iterdir())]
        large = [watched(file, self._throttle) for file in files if file not in small]
        return _Model({name: _known(path) for name, path in paths.items()}, [*ready, *large])

    def _fill(self, model: _Model, targets: Sequence[Path]) -> MemoryFiles:
        version = folder_of_version(version_of(self._origin.uri, self._stamp))
        left = staging_root(self._home, self._order.model) / "downloads" / version
        places = {file.name: path for file, path in zip(model.files, targets, strict=True)}
        memory = MemoryFiles(
            places,
            self._scratch / "journals",
            left=Downloads(left) if left.is_dir() and os.access(left, os.W_OK) else None,
        )
        num_bytes = sum(file.num_bytes for file in model.files)
        self._movement.begin(num_bytes, memory)
        memory.bring(model.files, self._movement.add)
        self._end_stage("source", num_bytes)
        return memory

    def _checked(self, model: _Model, memory: MemoryFiles) -> Whole:
        entries = memory.entries()
        original = {name: file.sha256 for name, file in model.small.items()}
        digests = {name: entry.sha256 for name, entry in entries.items()}
        source_digests = {
            name: digest
            for name, digest in {**digests, **original}.items()
            if digest is not None and (name in original or name.endswith(".safetensors"))
        }
        source_sha256 = check_source_pin(
            source_digests, self._order.source_sha256, what=self._origin.uri
        )
        manifest = manifest_of(
            entries,
            source=self._origin.uri,
            source_sha256=source_sha256,
            source_stamp=self._stamp,
        )
        self._check_revision(manifest.weights_sha256)
        self._end_stage("check")
        num_bytes = sum(entry.bytes for entry in entries.values())
        return Whole(
            encode_manifest(manifest), manifest.weights_sha256, num_bytes, tuple(self._stages)
        )

    def _pull_to_disk(self, files: Sequence[RemoteFile]) -> Whole:
        origin = self._origin
        self._movement.begin(sum(file.num_bytes for file in files), None)
        if files and not isinstance(origin, FolderSource):  # which links what it can
            counted = [watched(file, self._throttle, self._movement.add) for file in files]
            origin = self._relayed(counted)
        checkpoint = self._pull(origin)
        num_bytes = sum(entry.bytes for entry in checkpoint.manifest.files.values())
        self._end_stage("source", num_bytes)
        return Whole(
            (checkpoint.path / MANIFEST_NAME).read_bytes(),
            checkpoint.revision,
            num_bytes,
            tuple(self._stages),
        )

    def _write_to_disk(self, model: _Model, memory: MemoryFiles) -> None:
        """A pull that reads memory: resumed where one was killed, whole or not there."""
        os.setpriority(os.PRIO_PROCESS, 0, _LOWEST_PRIORITY)
        origin = self._origin
        if not isinstance(origin, FolderSource):
            large = [
                memory.as_remote(file.name)
                for file in model.files
                if file.name.endswith(".safetensors") or is_extra(file.name)
            ]
            unslowed = Throttle(None)
            files = [
                watched(file, unslowed, self._movement.add)
                for file in [*model.small.values(), *large]
            ]
            origin = self._relayed(files)
        self._movement.begin(self._movement.num_bytes, None)
        self._pull(origin)

    def _relayed(self, files: Sequence[RemoteFile]) -> RelayedSource:
        return RelayedSource(self._origin.uri, self._order.model, self._stamp, files)

    def _pull(self, origin: Source) -> Checkpoint:
        return pull_from(
            origin,
            name=self._order.model,
            home=self._home,
            sha256=self._order.source_sha256,
            weights_sha256=self._order.weights_sha256,
        )

    def _end_stage(self, name: str, num_bytes: int = 0) -> None:
        now_s = time.monotonic()
        self._stages.append(Stage(name, now_s - self._lap_began_s, num_bytes))
        self._lap_began_s = now_s


def _has_gguf(files: Sequence[RemoteFile]) -> bool:
    return any(file.name.endswith(".gguf") for file in files)


def _known(path: Path) -> RemoteFile:
    return replace(file_at(path), sha256=sha256_of_file(path))
