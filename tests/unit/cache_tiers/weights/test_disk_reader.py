"""Files of weights from a folder into memory."""

import asyncio
import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.direct_file import DirectFile
from cache_tiers.weights.disk_reader import Reading, read_from_disk
from cache_tiers.weights.errors import NoRoom, OriginFailed
from cache_tiers.weights.messages import CHUNK_BYTES, WeightFile

MIB = 1024**2
SIZES = (0, 1, 4095, 4096, CHUNK_BYTES, CHUNK_BYTES + 1, 2 * CHUNK_BYTES - 4096, 20 * MIB + 12345)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    noise = os.urandom(MIB + 1)
    for size in SIZES:
        content = noise * (size // len(noise) + 1)
        (folder / f"{size}.safetensors").write_bytes(content[:size])
    return folder


@pytest.fixture
def targets() -> Iterator[list[ArrivingFile]]:
    made = [ArrivingFile.in_memory(WeightFile(f"{size}.safetensors", size)) for size in SIZES]
    yield made
    for file in made:
        file.close()


def assert_same(folder: Path, targets: list[ArrivingFile]) -> None:
    for target in targets:
        there = hashlib.sha256((folder / target.file.name).read_bytes()).hexdigest()
        assert target.sha256(silence_s=0) == there


@pytest.mark.parametrize("num_threads", [1, 8])
async def test_files_of_all_sizes_are_whole_and_the_same(
    folder: Path, targets: list[ArrivingFile], num_threads: int
) -> None:
    await read_from_disk(folder, targets, num_threads=num_threads)
    assert all(target.is_whole for target in targets)
    assert_same(folder, targets)


def test_large_pages_are_filled_without_a_copy(folder: Path, targets: list[ArrivingFile]) -> None:
    files = [(each, DirectFile.to_read(folder / each.file.name)) for each in targets]
    Reading(files, is_straight=True).work()
    for _, file in files:
        file.close()
    assert_same(folder, targets)


class Plain(DirectFile):
    """On a file system without direct I/O."""

    def _open_direct(self, access: int) -> None:
        return None


@pytest.mark.parametrize("is_straight", [False, True])
def test_a_file_system_without_direct_io_is_read_plainly(
    folder: Path, targets: list[ArrivingFile], *, is_straight: bool
) -> None:
    files = [(each, Plain.to_read(folder / each.file.name)) for each in targets]
    Reading(files, is_straight=is_straight).work()
    for _, file in files:
        file.close()
    assert_same(folder, targets)


async def test_files_on_another_disk_are_filled_too(folder: Path, tmp_path: Path) -> None:
    size = SIZES[-1]
    file = WeightFile(f"{size}.safetensors", size)
    target = ArrivingFile.on_disk(file, tmp_path / "copy")
    await read_from_disk(folder, [target])
    target.close()
    assert (tmp_path / "copy").read_bytes() == (folder / file.name).read_bytes()


async def test_what_is_there_already_is_not_read_again(folder: Path) -> None:
    size = SIZES[-1]
    target = ArrivingFile.in_memory(WeightFile(f"{size}.safetensors", size))
    with target.chunk(1) as memory:
        memory[:5] = b"other"
    target.mark(1)
    await read_from_disk(folder, [target])
    assert os.pread(target.fd, 5, CHUNK_BYTES) == b"other"
    assert target.is_whole
    target.close()


async def test_several_read_the_same_files_at_a_time(folder: Path) -> None:
    files = [WeightFile(f"{size}.safetensors", size) for size in SIZES]
    sets = [[ArrivingFile.in_memory(file) for file in files] for _ in range(3)]
    await asyncio.gather(*(read_from_disk(folder, each, num_threads=3) for each in sets))
    for each in sets:
        assert_same(folder, each)
        for target in each:
            target.close()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("missing", "No such file"),
        ("folder", "not a file"),
        ("pipe", "not a file"),
        ("short", "has 9 bytes instead of 10: delete"),
        ("long", "has 11 bytes instead of 10: delete"),
        ("nul\0", "null"),
    ],
)
async def test_what_is_not_that_file_is_told_and_nothing_is_marked(
    tmp_path: Path, name: str, expected: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "short").write_bytes(b"123456789")
    (tmp_path / "long").write_bytes(b"12345678901")
    (tmp_path / "good").write_bytes(b"1234567890")
    targets = [ArrivingFile.in_memory(WeightFile(each, 10)) for each in ("good", name)]
    num_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OriginFailed, match=expected):
        await read_from_disk(tmp_path, targets)
    assert [target.num_arrived_bytes for target in targets] == [0, 0]
    assert len(os.listdir("/proc/self/fd")) == num_open
    for target in targets:
        target.close()


class Breaks(DirectFile):
    """Something happens to the disk before the third chunk is read."""

    def before_the_third(self) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def read(self, memory: memoryview, offset: int) -> int:
        if offset == 2 * CHUNK_BYTES:
            self.before_the_third()
        return super().read(memory, offset)


class Shrinks(Breaks):
    def before_the_third(self) -> None:
        os.truncate(f"/proc/self/fd/{self.fd}", 2 * CHUNK_BYTES + 100)


@pytest.mark.parametrize(
    ("disk", "expected"),
    [
        (Breaks, "can't be read from the disk at byte 16777216: .*Input/output error"),
        (Shrinks, "ended at byte 16777316 while it was read: it has 41943040 bytes"),
    ],
)
async def test_a_disk_that_fails_on_the_way_leaves_what_was_right(
    tmp_path: Path, disk: type[Breaks], expected: str
) -> None:
    (tmp_path / "model").write_bytes(b"")
    os.truncate(tmp_path / "model", 5 * CHUNK_BYTES)
    target = ArrivingFile.in_memory(WeightFile("model", 5 * CHUNK_BYTES))
    with pytest.raises(OriginFailed, match=expected):
        await read_from_disk(tmp_path, [target], num_threads=1, open_file=disk.to_read)
    assert [target.has(index) for index in range(5)] == [True, True, False, False, False]
    target.close()


def test_a_read_that_failed_holds_no_memory_though_its_error_is_kept(tmp_path: Path) -> None:
    class Broken(DirectFile):
        def _read_some(self, memory: memoryview, offset: int) -> int:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    (tmp_path / "model").write_bytes(bytes(CHUNK_BYTES))
    target = ArrivingFile.in_memory(WeightFile("model", CHUNK_BYTES))
    with Broken.to_read(tmp_path / "model") as file:
        reading = Reading([(target, file)], is_straight=True)
        with pytest.raises(OriginFailed) as kept:
            reading.work()
    target.mark(0)
    target.seal()  # raises BufferError while anybody may write
    target.close()
    assert "Input/output error" in str(kept.value)


async def test_memory_that_is_gone_is_told(folder: Path, targets: list[ArrivingFile]) -> None:
    targets[-1].close()
    with pytest.raises(NoRoom, match="Bad file descriptor"):
        await read_from_disk(folder, targets)


def test_when_one_read_has_failed_the_others_end(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(b"")
    os.truncate(tmp_path / "model", 50 * CHUNK_BYTES)
    target = ArrivingFile.in_memory(WeightFile("model", 50 * CHUNK_BYTES))
    with Breaks.to_read(tmp_path / "model") as file:
        reading = Reading([(target, file)], is_straight=False)
        assert reading.num_waiting == 50
        with pytest.raises(OriginFailed):
            reading.work()
        assert reading.num_waiting == 0
    target.close()


async def test_after_a_cancel_nobody_writes_any_more(
    tmp_path: Path,
) -> None:
    is_reading, may_go_on = threading.Event(), threading.Event()

    class Slow(Breaks):
        def before_the_third(self) -> None:
            is_reading.set()
            may_go_on.wait(10)

    (tmp_path / "model").write_bytes(b"")
    os.truncate(tmp_path / "model", 50 * CHUNK_BYTES)
    target = ArrivingFile.in_memory(WeightFile("model", 50 * CHUNK_BYTES))
    reading = asyncio.create_task(
        read_from_disk(tmp_path, [target], num_threads=1, open_file=Slow.to_read)
    )
    await asyncio.to_thread(is_reading.wait, 10)
    reading.cancel()
    await asyncio.sleep(0.01)
    assert not reading.done()  # memory must not be released under a thread
    may_go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert [index for index in range(50) if target.has(index)] == [0, 1, 2]
    target.close()
