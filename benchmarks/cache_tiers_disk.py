"""The disk tier beside plain sequential reads and writes of as many bytes in the same folder.

All transfers are direct (``O_DIRECT``), so that no page cache answers in place of the device; where
the file system has no direct transfers, nothing is measured.
"""

import asyncio
import os
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from benchmarks.cache_tiers_images import LAYOUT, aligned_memory, fill, make_images
from benchmarks.cache_tiers_pairs import Pairs
from benchmarks.result import CaseResult, ResultError
from cache_tiers.config import DiskConfig
from cache_tiers.disk_tier import DiskTier

_REQUEST_BYTES = 4 * 1024**2
_MAX_BYTES = 2 * 1024**3
_PLAIN_NAME = "plain"


class PlainDisk:
    """The limit: one request of some MiB after the other."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._buffer = aligned_memory(_REQUEST_BYTES)

    def read_s(self, num_bytes: int) -> float:
        """Seconds of reading so many bytes from the segment files, which must hold them."""
        num_read = 0
        started_s = time.perf_counter()
        for path in sorted(self._folder.glob("segment-*.kv")):
            file = _open_direct(path, os.O_RDONLY)
            try:
                offset = 0
                while num_read < num_bytes:
                    part = self._buffer[: min(_REQUEST_BYTES, num_bytes - num_read)]
                    if not (num := os.preadv(file, [part], offset)):
                        break
                    offset += num
                    num_read += num
            finally:
                os.close(file)
        seconds = time.perf_counter() - started_s
        assert num_read == num_bytes
        return seconds

    def write_s(self, num_bytes: int) -> float:
        """Seconds of writing over a file of so many bytes."""
        path = self._folder / _PLAIN_NAME
        if not path.exists():
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)
            self.write_s(num_bytes)  # as the tier's slots were written before
        target = _open_direct(path, os.O_WRONLY)
        try:
            started_s = time.perf_counter()
            offset = 0
            while offset < num_bytes:
                part = self._buffer[: min(_REQUEST_BYTES, num_bytes - offset)]
                offset += os.pwritev(target, [part], offset)
            return time.perf_counter() - started_s
        finally:
            os.close(target)


def measure_disk(num_images: int, num_pairs: int, parent: Path) -> list[CaseResult]:
    """``nvme_restore_over_read`` and ``nvme_store_over_write``."""
    images = make_images(num_images, aligned_memory(num_images * LAYOUT.image_bytes))
    num_bytes = num_images * LAYOUT.image_bytes
    fill(images)
    reads, writes = Pairs(), Pairs()
    with tempfile.TemporaryDirectory(dir=parent) as name, asyncio.Runner() as runner:
        folder = Path(name)
        tier = runner.run(DiskTier.open([DiskConfig(path=folder, max_bytes=_MAX_BYTES)]))
        plain = PlainDisk(folder)
        runner.run(tier.store(images))
        for _ in range(num_pairs):
            reads.add(
                lambda: runner.run(_seconds(tier.load(images))), lambda: plain.read_s(num_bytes)
            )
            tier.evict(LAYOUT, [image.key for image in images])
            writes.add(
                lambda: runner.run(_seconds(tier.store(images))), lambda: plain.write_s(num_bytes)
            )
        runner.run(tier.close())
    return [
        reads.rates(num_bytes, "nvme_restore_over_read", "plain O_DIRECT read"),
        writes.rates(num_bytes, "nvme_store_over_write", "plain O_DIRECT write"),
    ]


async def _seconds(work: Coroutine[Any, Any, list[bool]]) -> float:
    started_s = time.perf_counter()
    are_done = await work
    seconds = time.perf_counter() - started_s
    assert all(are_done)
    return seconds


def _open_direct(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_DIRECT)
    except OSError as error:
        raise ResultError(
            f"{path.parent} takes no direct I/O ({error}): name a folder on a disk with --folder"
        ) from error
