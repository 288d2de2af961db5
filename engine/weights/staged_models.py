"""Models in this node's memory: their files, and the folders through which ranks open them.

Must not know where they come from, nor who leaves when memory is short.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.chunk_messages import Lent
from cache_tiers.weights.host_memory import HostMemory
from cache_tiers.weights.link_folder import LinkFolder
from cache_tiers.weights.messages import WeightsOrder
from engine.checkpoints.extras import place_libraries
from engine.checkpoints.manifest import Manifest
from engine.weights.model_on_node import Copy

_COMPILED = ".compiled"
_LARGE = (".safetensors", ".weights")
_REVISION_CHARS = 16


@dataclass(slots=True)
class StagedModel:
    """One revision, whole and checked. ``files`` are sealed."""

    model: str
    copy: Copy
    manifest: Manifest
    encoded: bytes
    stamp: str
    files: list[ArrivingFile]

    @property
    def path(self) -> Path:
        return Path(self.copy.folder)

    @property
    def lent(self) -> Lent:
        return Lent(self.stamp, tuple(self.files), self.encoded)


class StagedModels:
    """Owner of all of them. Methods block only for as long as small files are written."""

    def __init__(
        self, root: Path, memory: HostMemory, *, home: Path, trusts_libraries: bool = False
    ) -> None:
        """Folders below ``root``; what dead processes have left there goes. Compiled code is shared
        with the models of ``home``, that which came with a model only if it is trusted."""
        self._trusts_libraries = trusts_libraries
        self._root = root
        self._memory = memory
        self._compiled = home / "models" / _COMPILED
        self._folders = LinkFolder(root)
        self._models: dict[str, StagedModel] = {}

    @property
    def all(self) -> list[StagedModel]:
        return list(self._models.values())

    def find(self, folder: str) -> StagedModel | None:
        return self._models.get(folder)

    def put(
        self,
        order: WeightsOrder,
        files: Sequence[ArrivingFile],
        *,
        manifest: Manifest,
        encoded: bytes,
        stamp: str,
    ) -> StagedModel:
        """Seal ``files``, all of which are whole and checked, and link them. They are this object's
        from then on. Raises `NoRoom` or `WrongWeights`; then they are still the caller's.
        """
        for file in files:
            entry = manifest.all_files.get(file.file.name)
            if entry is not None:
                os.utime(file.fd, ns=(entry.mtime_ns, entry.mtime_ns))
            file.seal()
        path = self._path(order.model, manifest.weights_sha256)
        large = {file.file.name: file for file in files if file.file.name.endswith(_LARGE)}
        small = {file.file.name: _content(file) for file in files if file.file.name not in large}
        self._folders.make(path, small, large, encoded)
        for name in small:
            entry = manifest.all_files.get(name)
            if entry is not None:  # who opens the folder needs to hash nothing then
                os.utime(path / name, ns=(entry.mtime_ns, entry.mtime_ns))
        self._share_compiled(path)
        copy = Copy(
            source=order.source,
            source_sha256=manifest.source_sha256,
            weights_sha256=manifest.weights_sha256,
            folder=str(path),
            num_bytes=sum(file.file.num_bytes for file in files),
        )
        staged = StagedModel(order.model, copy, manifest, encoded, stamp, list(files))
        self._models[copy.folder] = staged
        return staged

    def add(self, staged: StagedModel, file: ArrivingFile) -> None:
        """One more file of a model that is here, whole and right; it replaces a file of the folder
        that ranks have written."""
        file.seal()
        self._folders.link(staged.path, file.file.name, file)
        staged.files.append(file)

    def link_to_disk(self, staged: StagedModel, path: Path) -> None:
        """Let the folder have a file that lies on the disk."""
        with suppress(FileExistsError):
            (staged.path / path.name).symlink_to(path)

    def extras(self, staged: StagedModel) -> list[ArrivingFile]:
        """Files in memory that ranks could make anew."""
        return [file for file in staged.files if file.file.name not in staged.manifest.files]

    def drop_extras(self, staged: StagedModel) -> None:
        """Hand back their memory."""
        extras = self.extras(staged)
        for file in extras:
            (staged.path / file.file.name).unlink(missing_ok=True)
        staged.files = [file for file in staged.files if file not in extras]
        self._memory.release(extras)

    def written_by_ranks(self, staged: StagedModel) -> list[Path]:
        return self._folders.adopt_new(staged.path)

    def is_sound(self, folder: str) -> bool:
        """Nobody has touched the folder."""
        return self._folders.is_sound(Path(folder))

    def drop(self, folder: str) -> None:
        """Links go, and so does the memory, once no rank has it mapped. Fine if it isn't here."""
        staged = self._models.pop(folder, None)
        if staged is not None:
            self._folders.remove(staged.path)
            self._memory.release(staged.files)

    def close(self) -> None:
        for folder in list(self._models):
            self.drop(folder)

    def _path(self, model: str, revision: str) -> Path:
        """Another one than any that is in use: of one revision there may be two, where only a file
        beside its weights was changed."""
        path = self._root / model / revision[:_REVISION_CHARS]
        for number in range(2, len(self._models) + 3):
            if str(path) not in self._models:
                return path
            path = path.with_name(f"{revision[:_REVISION_CHARS]}-{number}")
        raise AssertionError("there are fewer models than numbers")

    def _share_compiled(self, path: Path) -> None:
        """Compiled code lies beside a checkpoint; where it can't be shared, each model of this node
        compiles for itself."""
        with suppress(OSError):
            self._compiled.mkdir(mode=0o700, parents=True, exist_ok=True)
            link = path.with_name(_COMPILED)
            if not link.is_symlink():
                link.symlink_to(self._compiled)
            if self._trusts_libraries:
                place_libraries(path, self._compiled)


def _content(file: ArrivingFile) -> bytes:
    return os.pread(file.fd, file.file.num_bytes, 0)
