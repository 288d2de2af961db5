"""Models on this node's disk, in the store that ``headwater models`` keeps, too.

Must not know who wants them. Methods block; call them in a thread.
"""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.messages import WeightFile, WeightsOrder
from engine.checkpoints.errors import CheckpointError, SourceUnavailable
from engine.checkpoints.inventory import remove_model
from engine.checkpoints.manifest import CONVERTER_VERSION, MANIFEST_NAME, Manifest, read_manifest
from engine.checkpoints.pull import create_source
from engine.checkpoints.staging import Staging, staged
from engine.checkpoints.store import checkpoint_path, open_checkpoint
from engine.weights.model_on_node import Copy

_BROUGHT = ".brought"
"""Of models that were brought for orders, a file each: those alone may be removed for others. Its
time is that of the last use."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A checkpoint that opens and is what was ordered."""

    copy: Copy
    path: Path
    manifest: Manifest
    encoded: bytes

    @property
    def files(self) -> list[WeightFile]:
        """That the manifest names."""
        entries = self.manifest.files.items()
        return [WeightFile(name, entry.bytes, entry.sha256) for name, entry in entries]


class DiskModels:
    """Other processes use the same store at the same time; its locks hold."""

    def __init__(self, home: Path, *, disk_bytes: int | None) -> None:
        self.home = home
        self._disk_bytes = disk_bytes

    def open(self, order: WeightsOrder) -> StoredModel | None:
        """None without a sound copy of what ``order`` means. Doesn't ask the source."""
        path = checkpoint_path(self.home, order.model)
        try:
            manifest = open_checkpoint(path).manifest
            encoded = (path / MANIFEST_NAME).read_bytes()
        except (CheckpointError, OSError):
            return None
        if manifest.source != _uri(order.source) or manifest.converter_version != CONVERTER_VERSION:
            return None
        num_bytes = sum(entry.bytes for entry in manifest.files.values())
        copy = Copy(
            source=order.source,
            source_sha256=manifest.source_sha256,
            weights_sha256=manifest.weights_sha256,
            folder=str(path),
            num_bytes=num_bytes,
        )
        return StoredModel(copy, path, manifest, encoded) if copy.is_what(order) else None

    def is_there(self, copy: Copy) -> bool:
        """Whether its folder still holds that revision."""
        try:
            return read_manifest(Path(copy.folder)).weights_sha256 == copy.weights_sha256
        except (CheckpointError, OSError):
            return False

    def distrust(self, stored: StoredModel) -> None:
        """Its content isn't what its manifest says: whoever opens it hashes it, and refuses it."""
        for name in stored.manifest.files:
            with suppress(OSError):
                os.utime(stored.path / name)

    def note_brought(self, model: str) -> None:
        """It may be removed when room is short."""
        marker = self._marker(model)
        with suppress(OSError):
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch()

    def note_use(self, model: str) -> None:
        with suppress(OSError):
            os.utime(self._marker(model))

    def trim(self, is_needed: Callable[[str], bool]) -> list[str]:
        """Remove brought models that nobody needs, the longest unused first, until the store is
        within its bound. Returns their names."""
        removed: list[str] = []
        if self._disk_bytes is None:
            return removed
        excess_bytes = self._store_bytes() - self._disk_bytes
        for marker in self._markers():
            if excess_bytes <= 0:
                break
            if is_needed(marker.name):
                continue
            num_bytes = _folder_bytes(checkpoint_path(self.home, marker.name))
            with suppress(CheckpointError):  # it is gone already
                remove_model(self.home, marker.name)
            marker.unlink(missing_ok=True)
            removed.append(marker.name)
            excess_bytes -= num_bytes
        return removed

    def has_room(self, num_bytes: int) -> bool:
        """Whether a file of that size can be added beside models. Nothing is removed for it."""
        with suppress(OSError):
            if shutil.disk_usage(self.home).free < num_bytes:
                return False
        return self._disk_bytes is None or self._store_bytes() + num_bytes <= self._disk_bytes

    def _marker(self, model: str) -> Path:
        return self.home / "models" / _BROUGHT / model

    def _markers(self) -> list[Path]:
        folder = self.home / "models" / _BROUGHT
        markers = list(folder.iterdir()) if folder.is_dir() else []
        return sorted(markers, key=lambda marker: marker.stat().st_mtime_ns)

    def _store_bytes(self) -> int:
        models = self.home / "models"
        folders = [each for each in models.iterdir() if each.is_dir()] if models.is_dir() else []
        return sum(_folder_bytes(each) for each in folders if not each.name.startswith("."))


def _uri(source: str) -> str:
    """As manifests have it, be there something now or not."""
    try:
        return create_source(source).uri
    except CheckpointError:  # a folder that is gone: what was brought from there has served before
        return str(Path(source).expanduser().resolve())


async def has_moved(order: WeightsOrder, stamp: str, timeout_s: float) -> bool:
    """Whether the source has other weights than those that were brought when its stamp was
    ``stamp``. One that can't be asked in time has not: what is here has served before."""
    if order.weights_sha256 is not None or order.source_sha256 is not None:
        return False  # pins say what is wanted, whatever the source has
    try:
        asked = asyncio.to_thread(lambda: create_source(order.source).stamp())
        return await asyncio.wait_for(asked, timeout_s) != stamp
    except (SourceUnavailable, TimeoutError):
        return False
    except CheckpointError:
        return False  # bringing it says what is wrong


@asynccontextmanager
async def staging_of(home: Path, model: str) -> AsyncIterator[Staging]:
    """``staged``, without blocking the event loop while another process has the lock."""
    context = staged(home, model)
    entering = asyncio.ensure_future(asyncio.to_thread(context.__enter__))
    try:
        staging = await asyncio.shield(entering)
    except asyncio.CancelledError:
        entering.add_done_callback(
            lambda done: None if done.exception() else context.__exit__(None, None, None)
        )
        raise
    try:
        yield staging
    finally:
        await asyncio.shield(asyncio.to_thread(context.__exit__, None, None, None))


async def settle_on_disk(
    staging: Staging, manifest: Manifest, encoded: bytes, files: Sequence[ArrivingFile]
) -> None:
    """Make what lies in ``staging.new``, whole and checked, the checkpoint. Who cancels it waits
    for its end: the lock and the folder must not go while it is at work."""
    settling = asyncio.ensure_future(
        asyncio.to_thread(_settle, staging, manifest, encoded, tuple(files))
    )
    try:
        await asyncio.shield(settling)
    except asyncio.CancelledError:
        await asyncio.wait([settling])
        raise


def _settle(
    staging: Staging, manifest: Manifest, encoded: bytes, files: Sequence[ArrivingFile]
) -> None:
    for file in files:
        entry = manifest.files.get(file.file.name)
        if entry is not None:
            os.utime(staging.new / file.file.name, ns=(entry.mtime_ns, entry.mtime_ns))
    (staging.new / MANIFEST_NAME).write_bytes(encoded)
    staging.commit()


def _folder_bytes(folder: Path) -> int:
    try:
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    except OSError:
        return 0  # it goes or comes
