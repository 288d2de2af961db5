"""Files of weights from memory to the disk, in the background."""

import asyncio
import os
import resource
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.direct_file import DirectFile
from cache_tiers.weights.disk_writer import write_to_disk
from cache_tiers.weights.errors import NoRoom
from cache_tiers.weights.messages import CHUNK_BYTES, WeightFile

SIZE = 2 * CHUNK_BYTES + 12345
CONTENT = os.urandom(SIZE)


def in_memory(content: bytes) -> ArrivingFile:
    file = ArrivingFile.in_memory(WeightFile("model.safetensors", len(content)))
    os.pwrite(file.fd, content, 0)
    file.mark_until(len(content))
    file.seal()
    return file


@pytest.fixture
def source() -> Iterator[ArrivingFile]:
    file = in_memory(CONTENT)
    yield file
    file.close()


class Disk:
    """Notes what reaches it, and when."""

    def __init__(self) -> None:
        self.chunks: list[int] = []
        self.times_s: list[float] = []
        self.has_first = threading.Event()

    def to_write(self, path: Path) -> DirectFile:
        disk = self

        class Noted(DirectFile):
            def write(self, memory: memoryview, offset: int) -> None:
                disk.chunks.append(offset // CHUNK_BYTES)
                disk.times_s.append(time.monotonic())
                super().write(memory, offset)
                disk.has_first.set()

        return Noted.to_write(path)


class Plain(DirectFile):
    """On a file system without direct I/O."""

    def _open_direct(self, access: int) -> None:
        return None


@pytest.mark.parametrize("size", [0, 1, 4096, CHUNK_BYTES, CHUNK_BYTES + 1, SIZE])
async def test_the_copy_is_the_same(tmp_path: Path, size: int) -> None:
    source = in_memory(CONTENT[:size])
    await write_to_disk(source, tmp_path / "copy")
    source.close()
    assert (tmp_path / "copy").read_bytes() == CONTENT[:size]


async def test_a_file_system_without_direct_io_is_written_plainly(
    tmp_path: Path, source: ArrivingFile
) -> None:
    (tmp_path / "copy").write_bytes(CONTENT[: CHUNK_BYTES + 5])
    await write_to_disk(source, tmp_path / "copy", open_file=Plain.to_write)
    assert (tmp_path / "copy").read_bytes() == CONTENT


async def test_only_what_is_not_there_or_wrong_is_written(
    tmp_path: Path, source: ArrivingFile
) -> None:
    path, disk = tmp_path / "copy", Disk()
    path.write_bytes(CONTENT[: CHUNK_BYTES + 5])
    await write_to_disk(source, path, open_file=disk.to_write)
    assert disk.chunks == [1, 2]
    with path.open("rb+") as file:
        file.write(b"another")
    await write_to_disk(source, path, open_file=disk.to_write)
    assert disk.chunks == [1, 2, 0]
    path.write_bytes(CONTENT + b"more")
    await write_to_disk(source, path, open_file=disk.to_write)
    assert disk.chunks == [1, 2, 0]
    assert path.read_bytes() == CONTENT


async def test_it_is_never_ahead_of_its_rate(tmp_path: Path, source: ArrivingFile) -> None:
    disk, rate = Disk(), 100e6
    begin_s = time.monotonic()
    await write_to_disk(source, tmp_path / "copy", max_bytes_per_s=rate, open_file=disk.to_write)
    assert disk.chunks == [0, 1, 2]
    for index, at_s in enumerate(disk.times_s):
        assert min(SIZE, (index + 1) * CHUNK_BYTES) <= rate * (at_s - begin_s)


async def test_a_cancelled_copy_stops_at_once_and_goes_on_later(
    tmp_path: Path, source: ArrivingFile
) -> None:
    path, disk = tmp_path / "copy", Disk()
    slow = CHUNK_BYTES / 0.1  # a chunk in 100 ms
    copying = asyncio.create_task(
        write_to_disk(source, path, max_bytes_per_s=slow, open_file=disk.to_write)
    )
    await asyncio.to_thread(disk.has_first.wait, 10)
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await copying
    assert disk.chunks == [0]
    await write_to_disk(source, path, open_file=disk.to_write)
    assert disk.chunks == [0, 1, 2]
    assert path.read_bytes() == CONTENT


async def test_a_rate_of_almost_nothing_can_be_cancelled(
    tmp_path: Path, source: ArrivingFile
) -> None:
    copying = asyncio.create_task(write_to_disk(source, tmp_path / "copy", max_bytes_per_s=1))
    await asyncio.sleep(0.02)
    copying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(copying, 5)


async def test_a_full_disk_is_told_and_keeps_nothing(tmp_path: Path, source: ArrivingFile) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (CHUNK_BYTES, limits[1]))
    try:
        with pytest.raises(NoRoom, match=r"\(0\.02 GB\) can't be written: File too large: make"):
            await write_to_disk(source, tmp_path / "copy")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == []


async def test_a_path_that_leads_elsewhere_is_not_followed(
    tmp_path: Path, source: ArrivingFile
) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(b"kept")
    (tmp_path / "link").symlink_to(kept)
    for path in (tmp_path / "link", tmp_path / "missing" / "copy", tmp_path):
        with pytest.raises(NoRoom, match="can't be written"):
            await write_to_disk(source, path)
    assert kept.read_bytes() == b"kept"
