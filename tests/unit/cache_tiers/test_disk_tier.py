"""The disk tier gives back what it was given, after a restart too, and never more than it has."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cache_tiers.block_image import ImageLayout
from cache_tiers.config import DiskConfig
from cache_tiers.disk.files import Files
from cache_tiers.disk_tier import DiskTier
from cache_tiers.tier import Lookup, Tier, TierError, TierKind
from tests.disk_images import (
    LAYOUT,
    blank,
    blanks_of,
    copied,
    is_right,
    key_of,
    sealed,
    small_config,
)

OTHER = ImageLayout(b"another-layout-x", 1, 9000, 16)
SEGMENT_BYTES = 8 * LAYOUT.image_bytes


async def open_tier(*configs: DiskConfig) -> DiskTier:
    return await DiskTier.open(configs, segment_bytes=SEGMENT_BYTES)


async def test_images_come_back_as_they_were(tmp_path: Path) -> None:
    tier: Tier = await open_tier(small_config(tmp_path, 32))
    images = [*(sealed(number) for number in range(20)), sealed(20, num_tokens=7)]
    assert await tier.store(images) == [True] * 21

    back = [*blanks_of(images), blank(99)]

    assert await tier.load(back) == [True] * 21 + [False]
    assert all(map(is_right, back[:21]))
    assert await tier.find(LAYOUT, [key_of(3), key_of(99)]) == [Lookup.HIT, Lookup.MISS]
    assert tier.kind is TierKind.DISK
    await tier.close()


async def test_images_outlive_the_process(tmp_path: Path) -> None:
    tier = await open_tier(small_config(tmp_path, 32))
    images = [sealed(number, num_tokens=number + 1) for number in range(12)]
    others = [sealed(number, OTHER) for number in range(3)]
    await tier.store([*images, *others])
    tier.evict(LAYOUT, [key_of(5)])
    await tier.close()

    tier = await open_tier(small_config(tmp_path, 32))
    kept = [image for image in images if image.key != key_of(5)]
    assert set(tier.held()) == {
        (image.layout, image.key, image.num_tokens) for image in [*kept, *others]
    }
    back = blanks_of([*images, *others])
    assert await tier.load(back) == [number != 5 for number in range(15)]
    assert all(is_right(image) for image in back if image.key != key_of(5) or image.layout is OTHER)
    assert tier.stats().counters.recovered == 14
    await tier.close()


async def test_another_number_of_tokens_or_layout_is_a_miss(tmp_path: Path) -> None:
    tier = await open_tier(small_config(tmp_path, 8))
    await tier.store([sealed(1)])
    longer = ImageLayout(LAYOUT.fingerprint, 2, 8000, 16)

    assert await tier.load([blank(1, num_tokens=3), blank(1, OTHER), blank(1, longer)]) == 3 * [
        False
    ]
    assert await tier.load([blank(1)]) == [True]
    assert tier.stats().counters.unsound == 0
    await tier.close()


async def test_a_full_tier_takes_what_was_evicted(tmp_path: Path) -> None:
    tier = await open_tier(small_config(tmp_path, 20))
    assert tier.free_images(LAYOUT) == 20
    stored = await tier.store([sealed(number) for number in range(22)])
    assert stored == [True] * 20 + [False] * 2
    assert tier.free_images(LAYOUT) == 0
    assert await tier.store([sealed(30)]) == [False]

    tier.evict(LAYOUT, [key_of(4), key_of(17), key_of(99)])

    assert tier.free_images(LAYOUT) == 2
    assert await tier.store([sealed(30), sealed(31), sealed(32)]) == [True, True, False]
    assert await tier.find(LAYOUT, [key_of(4), key_of(30)]) == [Lookup.MISS, Lookup.HIT]
    stats = tier.stats()
    assert (stats.num_images, stats.used_bytes) == (20, stats.max_bytes)
    assert (stats.counters.evicted, stats.counters.refused) == (2, 4)
    await tier.close()


async def test_an_empty_segment_serves_another_layout(tmp_path: Path) -> None:
    tier = await open_tier(small_config(tmp_path, 16))
    await tier.store([sealed(number) for number in range(16)])
    assert await tier.store([sealed(0, OTHER)]) == [False]

    neighbours = tier.neighbours(LAYOUT, key_of(3))
    assert sorted(neighbours) == [key_of(number) for number in range(8)]
    tier.evict(LAYOUT, neighbours)

    assert tier.free_images(OTHER) > 0
    assert await tier.store([sealed(0, OTHER)]) == [True]
    assert await tier.load([blank(8)]) == [True]
    await tier.close()


async def test_an_image_larger_than_the_tier_is_refused(tmp_path: Path) -> None:
    tier = await open_tier(small_config(tmp_path, 4))
    large = ImageLayout(LAYOUT.fingerprint, 1, 5 * LAYOUT.image_bytes, 16)

    assert tier.free_images(large) == 0
    assert await tier.store([blank(1, large)]) == [False]
    await tier.close()


async def test_a_key_is_stored_once(tmp_path: Path) -> None:
    tier = await open_tier(small_config(tmp_path, 8))
    first, second = await asyncio.gather(
        tier.store([sealed(1), sealed(1)]), tier.store([sealed(1)])
    )

    assert (first, second) == ([True, True], [False])
    assert await tier.store([sealed(1)]) == [True]
    assert tier.stats().counters.stored == 1
    await tier.close()


async def test_batches_are_striped_over_folders(tmp_path: Path) -> None:
    layout = ImageLayout(LAYOUT.fingerprint, 1, 1 << 20, 16)
    configs = [small_config(tmp_path / name, 8, layout) for name in "ab"]
    tier = await DiskTier.open(configs, segment_bytes=8 << 20)
    images = [sealed(number, layout) for number in range(14)]
    assert await tier.store(images) == [True] * 14

    for folder in "ab":
        assert len(list((tmp_path / folder).glob("segment-*"))) == 1
    back = blanks_of(images)
    assert await tier.load(back) == [True] * 14
    assert all(map(is_right, back))
    assert await tier.store([sealed(number, layout) for number in range(20, 23)]) == [
        True,
        True,
        False,
    ]
    await tier.close()


class BufferedFiles(Files):
    """A file system without direct I/O."""

    def _takes_direct_io(self) -> bool:
        return False


async def test_file_systems_without_direct_io_do(tmp_path: Path) -> None:
    tier = await DiskTier.open([small_config(tmp_path, 8)], make_files=BufferedFiles)
    images = [sealed(number) for number in range(8)]
    # Memory need not be aligned then.
    images = [copied(each, memoryview(bytearray(each.memory))) for each in images]
    assert await tier.store(images) == [True] * 8

    back = blanks_of(images)
    assert await tier.load(back) == [True] * 8
    assert all(map(is_right, back))
    await tier.close()


class SlowFiles(Files):
    """Reads and writes that wait for a word once they have begun."""

    def __init__(self, folder: Path) -> None:
        self.may_go = threading.Event()
        self.may_go.set()
        self.begun = threading.Semaphore(0)
        """Counts the calls since ``halt``."""
        super().__init__(folder)

    def read(self, name: str, buffers: Sequence[memoryview], offset: int) -> int:
        self._wait()
        return super().read(name, buffers, offset)

    def write(self, name: str, buffers: Sequence[memoryview], offset: int) -> int:
        self._wait()
        return super().write(name, buffers, offset)

    def _wait(self) -> None:
        self.begun.release()
        assert self.may_go.wait(10)

    def halt(self) -> None:
        self.begun = threading.Semaphore(0)
        self.may_go.clear()


async def slow_tier(
    folder: Path, num_images: int, clock: Callable[[], float] = time.monotonic
) -> tuple[DiskTier, SlowFiles]:
    made: list[SlowFiles] = []

    def make_files(path: Path) -> Files:
        made.append(SlowFiles(path))
        return made[-1]

    tier = await DiskTier.open(
        [small_config(folder, num_images)],
        make_files=make_files,
        segment_bytes=SEGMENT_BYTES,
        clock=clock,
    )
    return tier, made[0]


async def waits(files: SlowFiles, num_calls: int = 1) -> None:
    for _ in range(num_calls):
        assert await asyncio.to_thread(files.begun.acquire, timeout=10)


async def test_a_cancelled_load_ends_when_the_memory_is_left_alone(tmp_path: Path) -> None:
    tier, files = await slow_tier(tmp_path, 8)
    await tier.store([sealed(1)])
    files.halt()
    image = blank(1)
    load = asyncio.create_task(tier.load([image]))
    await waits(files)

    for _ in range(2):  # a second one is no more urgent
        load.cancel()
        await asyncio.sleep(0.01)
        assert not load.done()
    files.may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await load

    assert await tier.load([blank(1)]) == [True]
    await tier.close()


async def test_what_a_cancelled_load_has_not_begun_is_not_read(tmp_path: Path) -> None:
    tier, files = await slow_tier(tmp_path, 80)
    images = [sealed(number) for number in range(80)]
    await tier.store(images)
    files.halt()
    back = blanks_of(images)
    load = asyncio.create_task(tier.load(back))  # of ten segments, so of ten requests
    await waits(files)
    load.cancel()
    await asyncio.sleep(0)
    files.may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await load

    assert 0 < sum(map(is_right, back)) < 80
    assert tier.stats().num_images == 80
    await tier.close()


async def test_a_cancelled_store_leaves_no_slot_behind(tmp_path: Path) -> None:
    tier, files = await slow_tier(tmp_path, 80)
    files.halt()
    store = asyncio.create_task(tier.store([sealed(number) for number in range(80)]))
    await waits(files)
    assert await tier.find(LAYOUT, [key_of(0)]) == [Lookup.PENDING]
    store.cancel()
    await asyncio.sleep(0)
    files.may_go.set()
    with pytest.raises(asyncio.CancelledError):
        await store

    stats = tier.stats()
    assert stats.num_images < 80
    assert stats.num_images + tier.free_images(LAYOUT) == 80
    assert stats.num_accepting == 1
    await tier.close()


async def test_nothing_more_is_asked_of_a_device_that_hangs(tmp_path: Path) -> None:
    now_s = [100.0]
    tier, files = await slow_tier(tmp_path, 16, clock=lambda: now_s[0])
    await tier.store([sealed(1), sealed(2)])
    files.halt()
    load = asyncio.create_task(tier.load([blank(1)]))
    store = asyncio.create_task(tier.store([sealed(3)]))
    await waits(files, num_calls=2)
    now_s[0] += 6

    for work in (tier.load([blank(2)]), tier.store([sealed(4)])):
        with pytest.raises(TierError, match="not answered for 5 s"):
            await work

    files.may_go.set()
    assert (await load, await store) == ([True], [True])
    now_s[0] += 1
    assert await tier.load([blank(2)]) == [True]
    assert await tier.store([sealed(4)]) == [True]
    await tier.close()


async def test_what_is_evicted_while_it_is_read_is_read_whole(tmp_path: Path) -> None:
    tier, files = await slow_tier(tmp_path, 8)
    await tier.store([sealed(number) for number in range(8)])
    files.halt()
    image = blank(1)
    load = asyncio.create_task(tier.load([image]))
    await waits(files)
    tier.evict(LAYOUT, [key_of(1)])

    assert await tier.store([sealed(9)]) == [False]
    files.may_go.set()

    assert await load == [True]
    assert is_right(image)
    assert await tier.store([sealed(9)]) == [True]
    await tier.close()


async def test_memory_that_is_not_aligned_is_a_bug_of_the_caller(tmp_path: Path) -> None:
    tier = await open_tier(small_config(tmp_path, 8))
    image = sealed(1)
    memory = memoryview(bytearray(image.memory))
    with pytest.raises(AssertionError, match="page-aligned"):
        await tier.store([copied(image, memory)])
    assert tier.free_images(LAYOUT) == 8
    await tier.close()


async def test_the_journal_stays_short(tmp_path: Path) -> None:
    tier = await open_tier(small_config(tmp_path, 64))
    images = [sealed(number) for number in range(64)]
    for _ in range(42):
        tier.evict(LAYOUT, [image.key for image in images])
        await tier.store(images)
    await tier.close()
    assert tier.stats().counters.rewrites == 1
    assert tier.stats().journal_records < 1500

    tier = await open_tier(small_config(tmp_path, 64))
    back = blanks_of(images)
    assert await tier.load(back) == [True] * 64
    assert all(map(is_right, back))
    await tier.close()


async def test_a_tier_without_folders_is_an_error() -> None:
    with pytest.raises(TierError, match="at least one folder"):
        await DiskTier.open([])
