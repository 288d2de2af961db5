"""Stores, loads, evictions and cancellations side by side: no wrong image, no lost slot."""

import asyncio
import random
from pathlib import Path

import pytest

from cache_tiers.block_image import ImageLayout
from cache_tiers.disk_tier import DiskTier
from tests.disk_images import LAYOUT, blank, is_right, key_of, sealed, small_config

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

OTHER = ImageLayout(b"another-layout-x", 1, 20_000, 16)
LAYOUTS = (LAYOUT, OTHER)
NUM_KEYS = 120
NUM_IMAGES = 48
NUM_WORKERS = 6
NUM_TURNS = 250


class Worker:
    """Does one thing after the other, beside its like."""

    def __init__(self, tier: DiskTier, seed: int) -> None:
        self._tier = tier
        self._dice = random.Random(seed)
        self.num_loaded = 0

    async def run(self) -> None:
        for _ in range(NUM_TURNS):
            layout = self._dice.choice(LAYOUTS)
            first, num = self._dice.randrange(NUM_KEYS), self._dice.randint(1, 12)
            numbers = [number % NUM_KEYS for number in range(first, first + num)]
            match self._dice.randrange(10):
                case 0 | 1 | 2:
                    await self._store(layout, numbers)
                case 3 | 4:
                    self._tier.evict(layout, [key_of(number) for number in numbers])
                case 5:
                    work = self._load if self._dice.random() < 0.5 else self._store
                    await self._cancel(asyncio.create_task(work(layout, numbers)))
                case _:
                    await self._load(layout, numbers)

    async def _store(self, layout: ImageLayout, numbers: list[int]) -> None:
        images = [sealed(number, layout) for number in numbers]
        await self._tier.store(images)
        for image in images:  # it is the caller's again
            image.memory[:] = bytes(layout.image_bytes)

    async def _load(self, layout: ImageLayout, numbers: list[int]) -> None:
        images = [blank(number, layout) for number in numbers]
        are_loaded = await self._tier.load(images)
        loaded = [image for image, is_loaded in zip(images, are_loaded, strict=True) if is_loaded]
        assert all(map(is_right, loaded)), "a wrong image was served"
        self.num_loaded += len(loaded)

    async def _cancel(self, task: asyncio.Task[None]) -> None:
        await asyncio.sleep(self._dice.choice([0, 0, 0.0005]))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() or task.exception() is None


async def test_all_at_once(tmp_path: Path) -> None:
    configs = [small_config(tmp_path / name, NUM_IMAGES) for name in "ab"]
    tier = await DiskTier.open(configs, segment_bytes=8 * LAYOUT.image_bytes)
    workers = [Worker(tier, seed) for seed in range(NUM_WORKERS)]
    await asyncio.gather(*(worker.run() for worker in workers))

    stats = tier.stats()
    assert sum(worker.num_loaded for worker in workers) > 500
    assert stats.counters.evicted > 200
    assert stats.counters.unsound == stats.counters.gone == 0
    assert stats.num_accepting == 2
    assert stats.used_bytes <= stats.max_bytes
    held = set(tier.held())
    await tier.close()

    tier = await DiskTier.open(configs, segment_bytes=8 * LAYOUT.image_bytes)
    assert set(tier.held()) == held
    images = [blank(int.from_bytes(each.key, "big"), each.layout) for each in held]
    assert all(await tier.load(images))
    assert all(map(is_right, images))
    for layout in LAYOUTS:
        tier.evict(layout, [key_of(number) for number in range(NUM_KEYS)])
    assert tier.free_images(LAYOUT) >= 2 * NUM_IMAGES - len(LAYOUTS) * len(configs)
    await tier.close()
