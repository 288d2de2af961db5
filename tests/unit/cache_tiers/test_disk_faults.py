"""Devices that fail, folders that others use, files that rot: the tier goes on with the rest."""

import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cache_tiers.disk.files import Files
from cache_tiers.disk.journal import NAME as JOURNAL
from cache_tiers.disk.records import RECORD_BYTES
from cache_tiers.disk_tier import DiskTier
from cache_tiers.tier import Lookup, TierError
from tests.disk_images import (
    LAYOUT,
    FaultyFiles,
    blank,
    blanks_of,
    is_right,
    key_of,
    sealed,
    small_config,
)

SEGMENT_BYTES = 8 * LAYOUT.image_bytes
NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
UNPLUGGED = OSError(errno.EIO, "Input/output error")
READ_ONLY = OSError(errno.EROFS, "Read-only file system")
TOO_MANY_FILES = OSError(errno.EMFILE, "Too many open files")


class Device:
    """A tier on one folder whose device can be made to fail, and whose time stands still."""

    def __init__(self, folder: Path, num_images: int = 32) -> None:
        self.now_s = 100.0
        self.folder = folder
        self._num_images = num_images
        self.errors: dict[str, OSError] = {}

    async def open(self) -> DiskTier:
        return await DiskTier.open(
            [small_config(self.folder, self._num_images)],
            make_files=self._make_files,
            segment_bytes=SEGMENT_BYTES,
            clock=lambda: self.now_s,
        )

    def flip(self, slot: int, segment: int = 0) -> None:
        """Change a byte of the image in a slot."""
        with (self.folder / f"segment-{segment:08x}.kv").open("r+b") as file:
            file.seek(slot * LAYOUT.image_bytes + 1234)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 1]))

    def _make_files(self, path: Path) -> Files:
        files = FaultyFiles(path)
        files.errors = self.errors
        return files


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return Device(tmp_path / "device")


async def test_a_full_disk_stops_stores_for_a_while_and_nothing_else(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    tier = await device.open()
    await tier.store([sealed(number) for number in range(8)])
    device.errors["preallocate"] = NO_SPACE

    for number in (10, 11, 12):
        with pytest.raises(TierError, match="No space left"):
            await tier.store([sealed(number)])
    assert tier.free_images(LAYOUT) == 0
    assert await tier.load([blank(3)]) == [True]
    tier.evict(LAYOUT, [key_of(3)])
    assert await tier.store([sealed(13)]) == [True]  # in a segment that is there
    assert len(caplog.records) == 1

    device.errors.clear()
    device.now_s += 1.0
    assert await tier.store([sealed(10)]) == [True]
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records][1:] == ["again"]
    await tier.close()


@pytest.mark.parametrize("error", [NO_SPACE, READ_ONLY, UNPLUGGED])
@pytest.mark.parametrize("call", ["write", "put"])
async def test_a_device_that_takes_nothing_is_tried_again_later(
    device: Device, caplog: pytest.LogCaptureFixture, call: str, error: OSError
) -> None:
    tier = await device.open()
    await tier.store([sealed(number) for number in range(4)])
    device.errors[call] = error

    for pause_s in (1.0, 2.0, 4.0):
        with pytest.raises(TierError, match=error.strerror):
            await tier.store([sealed(10)])
        assert tier.stats().num_accepting == 0
        device.now_s += pause_s - 0.01
        device.errors.clear()
        with pytest.raises(TierError, match=error.strerror):
            await tier.store([sealed(10)])
        device.errors[call] = error
        device.now_s += 0.01
    assert await tier.find(LAYOUT, [key_of(10), key_of(3)]) == [Lookup.MISS, Lookup.HIT]
    assert await tier.load([blank(3)]) == [True]
    assert len(caplog.records) == 1

    device.errors.clear()
    assert await tier.store([sealed(10)]) == [True]
    assert await tier.load([blank(10)]) == [True]
    await tier.close()


async def test_sectors_that_could_not_be_written_are_not_used_again(device: Device) -> None:
    tier = await device.open()
    await tier.store([sealed(0)])
    device.errors["write"] = UNPLUGGED
    with pytest.raises(TierError):
        await tier.store([sealed(1)])
    device.errors.clear()
    device.now_s += 1

    assert await tier.store([sealed(number) for number in range(1, 32)]) == [True] * 30 + [False]
    await tier.close()


async def test_an_image_whose_record_was_not_written_was_not_acknowledged(device: Device) -> None:
    tier = await device.open()
    await tier.store([sealed(0)])
    device.errors["put"] = NO_SPACE
    with pytest.raises(TierError):
        await tier.store([sealed(1)])
    await tier.close()

    device.errors.clear()
    tier = await device.open()
    assert [held.key for held in tier.held()] == [key_of(0)]
    assert tier.free_images(LAYOUT) == 31
    await tier.close()


async def test_a_device_that_was_full_at_the_start_is_still_read_from(device: Device) -> None:
    class Full(Files):
        def put(self, name: str, content: bytes, offset: int) -> None:
            raise NO_SPACE

    tier = await device.open()
    await tier.store([sealed(number) for number in range(4)])
    await tier.close()
    with (device.folder / JOURNAL).open("r+b") as file:
        file.seek(4 * RECORD_BYTES)
        file.write(b"damage")

    tier = await DiskTier.open([small_config(device.folder, 32)], make_files=Full)
    assert await tier.load([blank(number) for number in range(4)]) == [True] * 3 + [False]
    with pytest.raises(TierError, match="No space left"):
        await tier.store([sealed(5)])
    await tier.close()


async def test_another_folder_takes_what_one_cannot(tmp_path: Path) -> None:
    errors: dict[Path, dict[str, OSError]] = {tmp_path / "a": {"write": UNPLUGGED}}

    def make_files(path: Path) -> Files:
        files = FaultyFiles(path)
        files.errors = errors.get(path, {})
        return files

    configs = [small_config(tmp_path / name, 32) for name in "ab"]
    tier = await DiskTier.open(configs, make_files=make_files, segment_bytes=SEGMENT_BYTES)
    with pytest.raises(TierError):
        await tier.store([sealed(1)])

    assert tier.stats().num_accepting == 1
    assert await tier.store([sealed(1), sealed(2)]) == [True, True]
    await tier.close()


async def test_an_unplugged_device_keeps_its_images_until_it_is_back(
    device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    tier = await device.open()
    images = [sealed(number) for number in range(20)]
    await tier.store(images)
    device.errors |= {"read": UNPLUGGED, "put": UNPLUGGED, "rename": UNPLUGGED}

    for _ in range(2):
        with pytest.raises(TierError, match=r"reading from .* Input/output error"):
            await tier.load(blanks_of(images))
    assert tier.stats().counters.failed_loads == 40
    device.errors.clear()
    device.now_s += 1
    assert await tier.load(blanks_of(images)) == [True] * 20
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == [
        "time",
        "again",
    ]
    await tier.close()


@pytest.mark.parametrize("code", [errno.EIO, errno.ENODATA])
async def test_a_bad_sector_costs_its_image(device: Device, code: int) -> None:
    class BadSector(Files):
        def read(self, name: str, buffers: Sequence[memoryview], offset: int) -> int:
            end = offset + sum(map(len, buffers))
            if offset <= 3 * LAYOUT.image_bytes < end:
                raise OSError(code, os.strerror(code))
            return super().read(name, buffers, offset)

    tier = await DiskTier.open([small_config(device.folder, 8)], make_files=BadSector)
    images = [sealed(number) for number in range(8)]
    await tier.store(images)

    assert await tier.load(blanks_of(images)) == [number != 3 for number in range(8)]
    assert await tier.find(LAYOUT, [key_of(3)]) == [Lookup.MISS]
    assert tier.stats().counters.unsound == 1
    await tier.close()


async def test_a_failure_that_is_not_the_images_leaves_it_held(device: Device) -> None:
    tier = await device.open()
    await tier.store([sealed(1)])
    device.errors["read"] = TOO_MANY_FILES
    with pytest.raises(TierError, match="Too many open files"):
        await tier.load([blank(1)])
    assert tier.stats().counters.failed_loads == 1
    assert await tier.find(LAYOUT, [key_of(1)]) == [Lookup.HIT]
    device.errors.clear()

    assert await tier.load([blank(1)]) == [True]
    await tier.close()


async def test_a_vanished_file_is_a_miss(device: Device) -> None:
    tier = await device.open()
    images = [sealed(number) for number in range(16)]
    await tier.store(images)
    (device.folder / "segment-00000000.kv").unlink()

    assert await tier.load(blanks_of(images)) == [False] * 8 + [True] * 8
    assert await tier.find(LAYOUT, [key_of(0)]) == [Lookup.MISS]
    assert tier.stats().counters.gone == 8
    assert tier.free_images(LAYOUT) == 24
    await tier.close()


async def test_a_vanished_file_is_not_written_again(device: Device) -> None:
    tier = await device.open()
    await tier.store([sealed(number) for number in range(4)])
    (device.folder / "segment-00000000.kv").unlink()

    with pytest.raises(TierError, match="No such file"):
        await tier.store([sealed(4)])
    assert tier.stats().num_images == 0
    device.now_s += 1
    assert await tier.store([sealed(5)]) == [True]
    assert await tier.load([blank(5)]) == [True]
    await tier.close()


async def test_a_vanished_folder_stops_the_tier(device: Device) -> None:
    tier = await device.open()
    await tier.store([sealed(1)])
    for path in device.folder.iterdir():
        path.unlink()
    device.folder.rmdir()

    assert await tier.load([blank(1)]) == [False]
    with pytest.raises(TierError, match="No such file"):
        await tier.store([sealed(2)])
    await tier.close()


async def test_a_rotten_image_is_dropped_for_good(device: Device) -> None:
    tier = await device.open()
    images = [sealed(number) for number in range(8)]
    await tier.store(images)
    device.flip(slot=3)

    back = blanks_of(images)
    assert await tier.load(back) == [number != 3 for number in range(8)]
    assert all(is_right(image) for image in back if image.key != key_of(3))
    assert await tier.find(LAYOUT, [key_of(3)]) == [Lookup.MISS]
    assert tier.stats().counters.unsound == 1
    await tier.close()

    tier = await device.open()
    assert await tier.find(LAYOUT, [key_of(3)]) == [Lookup.MISS]
    assert tier.free_images(LAYOUT) == 24  # the bad slot is nobody's
    await tier.close()


async def test_bytes_of_another_image_are_as_wrong_as_rotten_ones(device: Device) -> None:
    tier = await device.open()
    await tier.store([sealed(0), sealed(1)])
    path = device.folder / "segment-00000000.kv"
    content = path.read_bytes()
    half = LAYOUT.image_bytes
    path.write_bytes(content[half : 2 * half] + content[half:])

    assert await tier.load([blank(0), blank(1)]) == [False, True]
    await tier.close()


async def test_segments_with_many_rotten_images_are_put_aside(tmp_path: Path) -> None:
    device = Device(tmp_path, num_images=128)
    tier = await device.open()
    images = [sealed(number) for number in range(32)]
    await tier.store(images)
    for segment in range(3):
        for slot in range(3):
            device.flip(slot, segment)
    await tier.load(blanks_of(images))
    await tier.close()

    assert tier.stats().num_images == 8
    assert tier.stats().counters.quarantined_segments == 3
    assert tier.free_images(LAYOUT) == 104
    assert sorted(name for name in os.listdir(tmp_path) if name.endswith(".kv")) == [
        "quarantine-segment-00000001.kv",
        "quarantine-segment-00000002.kv",
        "segment-00000003.kv",
    ]

    tier = await device.open()
    assert tier.stats().num_images == 8
    assert tier.free_images(LAYOUT) == 104
    assert await tier.store([sealed(number) for number in range(40, 48)]) == [True] * 8
    assert (device.folder / "segment-00000004.kv").exists()
    await tier.close()


async def test_a_file_is_put_aside_before_it_makes_room_for_later_ones(tmp_path: Path) -> None:
    class SlowAtFirst(Files):
        def rename(self, name: str, new_name: str) -> None:
            if name == "segment-00000000.kv":
                time.sleep(0.02)
            super().rename(name, new_name)

    device = Device(tmp_path)
    config = small_config(tmp_path, 128)
    tier = await DiskTier.open([config], make_files=SlowAtFirst, segment_bytes=SEGMENT_BYTES)
    images = [sealed(number) for number in range(24)]
    await tier.store(images)
    for segment in range(3):
        for slot in range(3):
            device.flip(slot, segment)
    await tier.load(blanks_of(images))
    await tier.close()

    assert "quarantine-segment-00000000.kv" not in os.listdir(tmp_path)


async def test_quarantine_takes_a_small_part_of_a_folder(device: Device) -> None:
    tier = await device.open()
    images = [sealed(number) for number in range(8)]
    await tier.store(images)
    for slot in range(3):
        device.flip(slot)
    await tier.load(blanks_of(images))
    await tier.close()

    assert tier.stats().used_bytes == 0
    assert not [name for name in os.listdir(device.folder) if name.endswith(".kv")]


async def test_what_a_reader_finds_wrong_is_dropped(device: Device) -> None:
    tier = await device.open()
    await tier.store([sealed(0), sealed(1)])

    tier.discard(LAYOUT, key_of(0))
    tier.discard(LAYOUT, key_of(99))

    assert await tier.load([blank(0), blank(1)]) == [False, True]
    assert tier.stats().counters.unsound == 1
    await tier.close()


async def test_a_folder_is_one_process_own(tmp_path: Path) -> None:
    tier = await DiskTier.open([small_config(tmp_path, 8)])
    with pytest.raises(TierError, match="in use by another node cache"):
        await DiskTier.open([small_config(tmp_path / "b", 8), small_config(tmp_path, 8)])
    await tier.close()

    for folder in (tmp_path, tmp_path / "b"):
        await (await DiskTier.open([small_config(folder, 8)])).close()


async def test_a_folder_that_cannot_be_used_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    bad, good = small_config(tmp_path / "file", 8), small_config(tmp_path / "good", 8)
    tier = await DiskTier.open([bad, good])
    assert await tier.store([sealed(1)]) == [True]
    assert "goes on without it" in caplog.text
    await tier.close()

    with pytest.raises(TierError, match="can't be used as a disk tier"):
        await DiskTier.open([bad])


async def test_leftovers_are_removed_and_files_of_others_are_not(device: Device) -> None:
    tier = await device.open()
    await tier.store([sealed(1)])
    await tier.close()
    ours = ["segment-00000007.kv", "headwater-index-1.wal.new", "headwater-index-0.wal"]
    others = ["notes.txt", "segment-1.kv", "segment-00000009.kv.bak"]
    for name in [*ours, *others]:
        (device.folder / name).write_bytes(b"x")

    tier = await device.open()

    assert [(device.folder / name).exists() for name in ours] == [False] * 3
    assert [(device.folder / name).exists() for name in others] == [True] * 3
    assert await tier.store([sealed(number) for number in range(2, 10)]) == [True] * 8
    assert (device.folder / "segment-00000008.kv").exists()
    await tier.close()


def shorten(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


@pytest.mark.parametrize("damage", [shorten, Path.unlink])
async def test_a_segment_that_is_not_whole_is_dropped_at_the_start(
    device: Device, damage: Callable[[Path], None]
) -> None:
    tier = await device.open()
    images = [sealed(number) for number in range(16)]
    await tier.store(images)
    await tier.close()
    damage(device.folder / "segment-00000000.kv")

    tier = await device.open()

    assert tier.stats().counters.lost_segments == 1
    assert await tier.load(blanks_of(images)) == [False] * 8 + [True] * 8
    assert tier.free_images(LAYOUT) == 24
    await tier.close()


async def test_a_garbage_journal_is_an_empty_tier(device: Device) -> None:
    tier = await device.open()
    await tier.store([sealed(1)])
    await tier.close()
    (device.folder / JOURNAL).write_bytes(bytes(range(256)) * 40)

    tier = await device.open()

    assert tier.stats().num_images == 0
    assert await tier.store([sealed(1)]) == [True]
    await tier.close()
    tier = await device.open()
    assert tier.stats().counters.damaged_records == 0, "it was told once"
    assert await tier.load([blank(1)]) == [True]
    await tier.close()


async def test_a_journal_that_goes_on_for_ever_is_read_no_further_than_it_makes_sense(
    device: Device,
) -> None:
    tier = await device.open()
    await tier.store([sealed(1)])
    await tier.close()
    with (device.folder / JOURNAL).open("r+b") as file:
        file.truncate(1 << 32)

    tier = await device.open()
    assert await tier.load([blank(1)]) == [True]
    assert (device.folder / JOURNAL).stat().st_size == 2 * RECORD_BYTES
    await tier.close()


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [Path.mkdir, make_pipe, make_link])
@pytest.mark.parametrize("name", [JOURNAL, "segment-00000000.kv"])
async def test_what_has_the_name_of_a_file_and_is_none_is_named(
    device: Device, name: str, make: Callable[[Path], None]
) -> None:
    tier = await device.open()
    await tier.store([sealed(1)])
    await tier.close()
    (device.folder / name).unlink()
    make(device.folder / name)

    with pytest.raises(TierError, match=f"can't be used .*{name}"):
        await device.open()


async def test_a_foreign_file_with_the_last_number_leaves_numbers(device: Device) -> None:
    await (await device.open()).close()
    (device.folder / "segment-ffffffff.kv").touch()

    tier = await device.open()
    assert await tier.store([sealed(number) for number in range(16)]) == [True] * 16
    await tier.close()
    tier = await device.open()
    assert tier.stats().num_images == 16
    await tier.close()


async def test_a_folder_that_is_to_be_smaller_gives_up_what_is_too_much(tmp_path: Path) -> None:
    tier = await Device(tmp_path, num_images=32).open()
    await tier.store([sealed(number) for number in range(32)])
    tier.evict(LAYOUT, [key_of(number) for number in range(7)])
    await tier.close()

    tier = await Device(tmp_path, num_images=16).open()

    assert tier.stats().num_images == 16
    assert sum(name.startswith("segment-") for name in os.listdir(tmp_path)) == 2
    await tier.close()
