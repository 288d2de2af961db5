"""What follows once a model is in memory: its copy on the disk, and what ranks make of it for those
to come.

Nothing here is waited for, and a failure costs nobody but time. Must not know orders.
"""

import asyncio
import itertools
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.disk_reader import read_from_disk
from cache_tiers.weights.disk_writer import write_to_disk
from cache_tiers.weights.errors import WeightsError
from cache_tiers.weights.host_memory import HostMemory
from cache_tiers.weights.messages import WeightFile
from engine.weights.disk_models import DiskModels, settle_on_disk, staging_of
from engine.weights.manifests import is_packed
from engine.weights.origins import stop
from engine.weights.staged_models import StagedModel, StagedModels
from engine.weights.weights_counts import WeightsCounts

logger = logging.getLogger(__name__)

_PACKED_SHARE = 1.25
"""Packed weights of one kind take about what the model does: so much of a model's size is kept in
memory of those that lie on the disk, the newest first; ranks read others from there."""


class Followers:
    """On one event loop. While one of these runs, ``staged`` must not be dropped."""

    def __init__(
        self, disk: DiskModels, staged: StagedModels, memory: HostMemory, counts: WeightsCounts
    ) -> None:
        self._disk = disk
        self._staged = staged
        self._memory = memory
        self._counts = counts
        self._left_out: set[Path] = set()
        self._numbers = itertools.count()

    async def kept_by(self, rest: "asyncio.Task[None]", model: str) -> bool:
        """Whether who brought it has put it on the disk, too, in the end."""
        try:
            await rest
        except asyncio.CancelledError:
            await stop(rest)
            raise
        except WeightsError as error:
            return self._not_kept(model, error)
        return await self._kept(model)

    async def keep_on_disk(self, staged: StagedModel) -> bool:
        """Copy it to the store, in place of what is there; whether that has worked."""
        try:
            async with staging_of(self._disk.home, staged.model) as staging:
                for file in staged.files:
                    await write_to_disk(file, staging.new / file.file.name)
                await settle_on_disk(staging, staged.manifest, staged.encoded, staged.files)
        except (WeightsError, OSError) as error:
            return self._not_kept(staged.model, error)
        return await self._kept(staged.model)

    async def take_packed(self, staged: StagedModel, folder: Path) -> None:
        """Packed weights that lie beside the checkpoint ``folder`` on the disk: links at once, and
        then in memory where there is room."""
        there = {file.file.name for file in staged.files}
        paths = [path for path in _packed(folder) if path.name not in there]
        for path in paths:
            self._staged.link_to_disk(staged, path)
        left_bytes = int(_PACKED_SHARE * staged.copy.num_bytes)
        for path in paths:
            num_bytes = path.stat().st_size
            if num_bytes <= left_bytes and await self._take(staged, path):
                left_bytes -= num_bytes

    async def adopt(self, staged: StagedModel) -> None:
        """What ranks have written into the folder since: into memory, where there is room."""
        for path in self._staged.written_by_ranks(staged):
            if path not in self._left_out:
                if await self._take(staged, path):
                    self._counts.num_adopted += 1
                else:
                    self._left_out.add(path)

    async def keep_packed(self, staged: StagedModel, folder: Path) -> None:
        """Packed weights of ``staged``, beside the checkpoint ``folder`` on the disk."""
        kept = [staged.path / file.file.name for file in self._staged.extras(staged)]
        for path in (*kept, *self._staged.written_by_ranks(staged)):
            if is_packed(path.name):
                await self._copy(path, folder / path.name)

    def _not_kept(self, model: str, error: Exception) -> bool:
        self._counts.num_not_kept += 1
        logger.warning("%s stays in memory alone: %s", model, error)
        return False

    async def _kept(self, model: str) -> bool:
        self._counts.num_kept += 1
        await asyncio.to_thread(self._disk.note_brought, model)
        return True

    async def _take(self, staged: StagedModel, path: Path) -> bool:
        """One file into memory, if there is room that nobody else has to leave for."""
        files: Sequence[ArrivingFile] = ()
        try:
            num_bytes = (await asyncio.to_thread(path.stat)).st_size
            files = self._memory.make_files([WeightFile(path.name, num_bytes)])
            await read_from_disk(path.parent, files)
            digest = await asyncio.to_thread(files[0].sha256, 1.0)
            files[0].file = msgspec.structs.replace(files[0].file, sha256=digest)
            self._staged.add(staged, files[0])
        except (WeightsError, OSError) as error:
            self._memory.release(files)
            logger.info("%s isn't kept in memory: %s", path, error)
            return False
        except BaseException:
            self._memory.release(files)
            raise
        return True

    async def _copy(self, path: Path, target: Path) -> None:
        def copy() -> None:
            if target.exists() or not self._disk.has_room(path.stat().st_size):
                return
            # A name that whoever packs weights removes, if we die here.
            new = target.with_name(f".{target.name}.new-{os.getpid()}-{next(self._numbers)}")
            try:
                with path.open("rb") as source, new.open("wb") as file:
                    _send_all(source.fileno(), file.fileno())
                    os.fsync(file.fileno())
                new.replace(target)
            finally:
                new.unlink(missing_ok=True)

        try:
            await asyncio.to_thread(copy)
        except OSError as error:
            logger.info("%s isn't kept on the disk: %s", path, error)


def _send_all(source: int, target: int) -> None:
    while os.sendfile(target, source, None, 1 << 26):
        pass


def _packed(folder: Path) -> list[Path]:
    """The newest first."""
    try:
        paths = [each for each in folder.iterdir() if is_packed(each.name) and each.is_file()]
        return sorted(paths, key=lambda path: -path.stat().st_mtime_ns)
    except OSError:
        return []  # a file went meanwhile, or the folder
