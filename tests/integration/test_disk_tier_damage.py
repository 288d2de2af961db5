"""Whatever happens to the files of a disk tier, no wrong image is served and nothing is raised."""

import random
import shutil
from pathlib import Path

import pytest

from cache_tiers.disk_tier import DiskTier
from cache_tiers.tier import TierError
from tests.disk_images import LAYOUT, blank, is_right, key_of, sealed, small_config

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

NUM_IMAGES = 32
IMAGES_PER_SEGMENT = 8
NUM_TRIALS = 60


async def open_tier(folder: Path) -> DiskTier:
    return await DiskTier.open(
        [small_config(folder, 2 * NUM_IMAGES)],
        segment_bytes=IMAGES_PER_SEGMENT * LAYOUT.image_bytes,
    )


@pytest.fixture
async def whole(tmp_path: Path) -> Path:
    """A folder with images, some evicted and stored again."""
    folder = tmp_path / "whole"
    tier = await open_tier(folder)
    await tier.store([sealed(number) for number in range(NUM_IMAGES + 4)])
    tier.evict(LAYOUT, [key_of(number) for number in range(4)])
    await tier.store([sealed(number) for number in range(4)])
    tier.evict(LAYOUT, [key_of(number) for number in range(NUM_IMAGES, NUM_IMAGES + 4)])
    await tier.close()
    return folder


def flip_bits(folder: Path, dice: random.Random, num: int) -> None:
    for _ in range(num):
        path = dice.choice([each for each in folder.iterdir() if each.stat().st_size])
        with path.open("r+b") as file:
            file.seek(at := dice.randrange(path.stat().st_size))
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << dice.randrange(8)]))


def spoil(folder: Path, dice: random.Random) -> None:
    """Cut off, overwritten with garbage or with another's content, removed."""
    path = dice.choice(sorted(folder.iterdir()))
    num_bytes = path.stat().st_size
    match dice.randrange(5):
        case 0:
            with path.open("r+b") as file:
                file.truncate(dice.randint(0, num_bytes))
        case 1:
            path.write_bytes(dice.randbytes(dice.choice([num_bytes, 1, 5000])))
        case 2:
            shutil.copyfile(dice.choice(sorted(folder.iterdir())), folder / "copy")
            (folder / "copy").replace(path)
        case 3:
            path.unlink()
        case 4:
            content = path.read_bytes()
            at = dice.randint(0, num_bytes)
            path.write_bytes(content[:at] + dice.randbytes(300) + content[at:])


async def load_all(tier: DiskTier) -> int:
    """How many are there; each of those is right."""
    images = [blank(number) for number in range(NUM_IMAGES + 4)]
    are_loaded = await tier.load(images)
    assert all(
        is_right(image) for image, is_loaded in zip(images, are_loaded, strict=True) if is_loaded
    ), "a wrong image was served"
    return sum(are_loaded)


async def is_usable(folder: Path) -> None:
    """A tier that found damage stores and gives back as before."""
    tier = await open_tier(folder)
    await load_all(tier)
    await tier.store([sealed(number) for number in range(100, 104)])
    images = [blank(number) for number in range(100, 104)]
    assert await tier.load(images) == [True] * 4
    assert all(map(is_right, images))
    await tier.close()


async def test_flipped_bits_cost_no_more_than_what_they_hit(whole: Path, tmp_path: Path) -> None:
    dice = random.Random(1)
    for _ in range(NUM_TRIALS):
        folder = Path(shutil.copytree(whole, tmp_path / "copy"))
        flip_bits(folder, dice, num=1)

        tier = await open_tier(folder)
        assert await load_all(tier) >= NUM_IMAGES - IMAGES_PER_SEGMENT
        await tier.close()
        await is_usable(folder)
        shutil.rmtree(folder)


async def test_bits_that_flip_under_an_open_tier_are_found(whole: Path, tmp_path: Path) -> None:
    dice = random.Random(2)
    for _ in range(NUM_TRIALS):
        folder = Path(shutil.copytree(whole, tmp_path / "copy"))
        tier = await open_tier(folder)
        flip_bits(folder, dice, num=6)
        assert await load_all(tier) >= NUM_IMAGES - 6
        assert await load_all(tier) == tier.stats().num_images
        await tier.close()
        await is_usable(folder)
        shutil.rmtree(folder)


async def test_spoilt_files_are_survived(whole: Path, tmp_path: Path) -> None:
    dice = random.Random(3)
    for _ in range(NUM_TRIALS):
        folder = Path(shutil.copytree(whole, tmp_path / "copy"))
        is_open = dice.random() < 0.5
        if is_open:
            tier = await open_tier(folder)
        for _ in range(dice.randint(1, 3)):
            spoil(folder, dice)
        if not is_open:
            tier = await open_tier(folder)
        await load_all(tier)
        try:
            await tier.store([sealed(number) for number in range(200, 220)])
        except TierError:
            assert is_open
        await load_all(tier)
        await tier.close()
        await is_usable(folder)
        shutil.rmtree(folder)
