"""The disk tier: KV on the node's own devices, which outlives the node cache and its node's reboot.

Each configured folder is used by one process and holds preallocated segment files and a journal of
what they hold (``cache_tiers.disk``). Batches are striped over the folders. What is evicted, others
decide. Must not know arenas, engines or policies.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from cache_tiers.block_image import BlockImage, ImageLayout
from cache_tiers.config import DiskConfig
from cache_tiers.disk.files import Files
from cache_tiers.disk.folder import Folder
from cache_tiers.disk.requests import MAX_REQUEST_BYTES, IsCancelled
from cache_tiers.disk.segment_table import Held
from cache_tiers.disk.stats import DiskStats, total
from cache_tiers.keys import BlockKey
from cache_tiers.tier import Lookup, TierError, TierKind

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MIN_SEGMENT_BYTES = 16 * 1024**2
_MAX_SEGMENT_BYTES = 256 * 1024**2
_NUM_SEGMENTS = 64
"""Wanted of a folder, so that several layouts find room."""


class DiskTier:
    """Implements ``Tier``. A call that is cancelled ends when the requests that the device is at
    have ended: with a device that hangs, not before; who can't wait so long must leave the call
    and the memory alone.
    """

    def __init__(self, folders: Sequence[Folder]) -> None:
        self._folders = folders
        self._next_folder = 0
        self._storing: set[tuple[ImageLayout, BlockKey]] = set()

    @classmethod
    async def open(
        cls,
        configs: Sequence[DiskConfig],
        *,
        make_files: Callable[[Path], Files] = Files,
        segment_bytes: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> Self:
        """Lock the folders and find what they hold. Raises ``TierError`` when another process has
        one of them, or none can be used; goes on without those that can't.
        """
        opened = await asyncio.gather(
            *(
                asyncio.to_thread(_open_folder, config, make_files, segment_bytes, clock)
                for config in configs
            ),
            return_exceptions=True,
        )
        folders = [each for each in opened if isinstance(each, Folder)]
        errors = [each for each in opened if isinstance(each, BaseException)]
        fatal = [each for each in errors if not isinstance(each, _Unusable)]
        if fatal or not folders:
            for folder in folders:
                await asyncio.to_thread(folder.shut)
            raise (*fatal, *errors, TierError("the disk tier needs at least one folder"))[0]
        for error in errors:
            logger.warning("%s; the disk tier goes on without it", error)
        return cls(folders)

    @property
    def kind(self) -> TierKind:
        return TierKind.DISK

    async def find(self, layout: ImageLayout, keys: Sequence[BlockKey]) -> list[Lookup]:
        return [self._find(layout, key) for key in keys]

    async def load(self, images: Sequence[BlockImage]) -> list[bool]:
        """An image that a device could not read for now is still found, and so it is with all if
        this raises.
        """
        cancelled = threading.Event()
        return await _finish(self._load(images, cancelled.is_set), cancelled)

    async def store(self, images: Sequence[BlockImage]) -> list[bool]:
        cancelled = threading.Event()
        return await _finish(self._store(images, cancelled.is_set), cancelled)

    def held(self) -> Iterator[Held]:
        """All images, those of earlier processes too."""
        for folder in self._folders:
            yield from folder.held()

    def free_images(self, layout: ImageLayout) -> int:
        """How many more images of ``layout`` there is room for before something must be evicted."""
        return sum(folder.free_images(layout) for folder in self._folders)

    def neighbours(self, layout: ImageLayout, key: BlockKey) -> list[BlockKey]:
        """All keys of the segment that holds ``key``, itself included: when all are evicted,
        another layout can have its room.
        """
        folder = self._folder_of(layout, key)
        return [] if folder is None else folder.neighbours(layout, key)

    def evict(self, layout: ImageLayout, keys: Sequence[BlockKey]) -> None:
        """Give up images, if they are here; those being read are read to the end."""
        for key in keys:
            for folder in self._folders:
                folder.evict(layout, key)

    def discard(self, layout: ImageLayout, key: BlockKey) -> None:
        """An image that was loaded is wrong all the same: count and drop it, leave its slot alone
        from now on.
        """
        for folder in self._folders:
            folder.discard(layout, key)

    def stats(self) -> DiskStats:
        """Counters since ``open``, and what is held now."""
        folders = self._folders
        return DiskStats(
            num_images=sum(folder.num_images for folder in folders),
            used_bytes=sum(folder.used_bytes for folder in folders),
            max_bytes=sum(folder.max_bytes for folder in folders),
            journal_records=sum(folder.journal_records for folder in folders),
            num_folders=len(folders),
            num_accepting=sum(folder.refusal() is None for folder in folders),
            counters=total([folder.counters for folder in folders]),
        )

    async def close(self) -> None:
        """No other call may be under way."""
        await asyncio.gather(*(folder.close() for folder in self._folders))

    def _find(self, layout: ImageLayout, key: BlockKey) -> Lookup:
        if self._folder_of(layout, key) is not None:
            return Lookup.HIT
        return Lookup.PENDING if (layout, key) in self._storing else Lookup.MISS

    def _folder_of(self, layout: ImageLayout, key: BlockKey) -> Folder | None:
        return next((each for each in self._folders if each.holds(layout, key)), None)

    async def _load(self, images: Sequence[BlockImage], is_cancelled: IsCancelled) -> list[bool]:
        shares: dict[Folder, list[int]] = {}
        for index, image in enumerate(images):
            # One that is nowhere is the first folder's to count.
            folder = self._folder_of(image.layout, image.key) or self._folders[0]
            shares.setdefault(folder, []).append(index)
        are_loaded = [False] * len(images)
        work = [
            folder.load([images[index] for index in indices], is_cancelled)
            for folder, indices in shares.items()
        ]
        parts = await asyncio.gather(*work, return_exceptions=True)
        for indices, part in zip(shares.values(), parts, strict=True):
            if not isinstance(part, BaseException):
                for index, is_loaded in zip(indices, part, strict=True):
                    are_loaded[index] = is_loaded
        _raise_first(parts, is_any_done=any(are_loaded))
        return are_loaded

    async def _store(self, images: Sequence[BlockImage], is_cancelled: IsCancelled) -> list[bool]:
        wanted: dict[ImageLayout, list[BlockImage]] = {}
        for image in images:
            if self._find(image.layout, image.key) is Lookup.MISS:
                self._storing.add((image.layout, image.key))
                wanted.setdefault(image.layout, []).append(image)
        try:
            shares = [
                share for layout, part in wanted.items() for share in self._deal(layout, part)
            ]
            results = await asyncio.gather(
                *(folder.store(part, is_cancelled) for folder, part in shares),
                return_exceptions=True,
            )
        finally:
            for layout, part in wanted.items():
                self._storing.difference_update((layout, image.key) for image in part)
        are_held = [self._folder_of(image.layout, image.key) is not None for image in images]
        _raise_first(results, is_any_done=any(are_held))
        return are_held

    def _deal(
        self, layout: ImageLayout, images: list[BlockImage]
    ) -> list[tuple[Folder, list[BlockImage]]]:
        """Which folder gets which images: a large request each in turn, as far as there is room."""
        refusals = [folder.refusal() for folder in self._folders]
        accepting = [
            folder for folder, why in zip(self._folders, refusals, strict=True) if why is None
        ]
        if not accepting:
            raise TierError("; ".join(filter(None, refusals)))
        if len(accepting) == 1:
            return [(accepting[0], images)]
        room = {folder: folder.free_images(layout) for folder in accepting}
        stripe_len = max(MAX_REQUEST_BYTES // layout.image_bytes, 1)
        shares: dict[Folder, list[BlockImage]] = {}
        while images and any(room.values()):
            folder = accepting[self._next_folder % len(accepting)]
            self._next_folder += 1
            num = min(stripe_len, room[folder])
            if num:
                room[folder] -= num
                shares.setdefault(folder, []).extend(images[:num])
                images = images[num:]
        if images:  # for a folder to say why it has no room
            shares.setdefault(accepting[0], []).extend(images)
        return list(shares.items())


class _Unusable(TierError):
    """A folder can't be used, which says nothing of the others."""


def _open_folder(
    config: DiskConfig,
    make_files: Callable[[Path], Files],
    segment_bytes: int | None,
    clock: Callable[[], float],
) -> Folder:
    wanted_bytes = max(config.max_bytes // _NUM_SEGMENTS, _MIN_SEGMENT_BYTES)
    try:
        files = make_files(config.path)
    except BlockingIOError as error:
        raise TierError(
            f"{config.path} is in use by another node cache, or configured twice; give each node "
            "cache a folder of its own"
        ) from error
    except OSError as error:
        raise _Unusable(f"{config.path} can't be used as a disk tier ({error})") from error
    folder = Folder(
        config.path,
        files,
        config.max_bytes,
        segment_bytes or min(wanted_bytes, _MAX_SEGMENT_BYTES),
        clock,
    )
    try:
        folder.recover()
    except OSError as error:
        folder.shut()
        raise _Unusable(f"{config.path} can't be used as a disk tier ({error})") from error
    return folder


def _raise_first(results: Sequence[object], *, is_any_done: bool) -> None:
    """Of what folders raised, all of which have ended: bugs first; that a device failed only if no
    other had something.
    """
    errors = [each for each in results if isinstance(each, BaseException)]
    bugs = [error for error in errors if not isinstance(error, TierError)]
    if bugs or (errors and not is_any_done):
        raise (bugs or errors)[0]


async def _finish(work: Coroutine[Any, Any, T], cancelled: threading.Event) -> T:
    """The result of ``work``, which is never cut off: threads use the caller's memory until it
    ends. A cancellation is told to it, and passed on when it has ended.
    """
    task = asyncio.get_running_loop().create_task(work)
    cancellation: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancellation = error
            cancelled.set()
    if cancellation is None:
        return task.result()
    task.exception()
    raise cancellation
