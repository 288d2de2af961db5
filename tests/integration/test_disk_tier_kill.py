"""A node cache that is killed at any moment loses nothing that it acknowledged, and a folder is for
one process at a time."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cache_tiers.disk_tier import DiskTier
from cache_tiers.tier import TierError
from tests.disk_images import LAYOUT, blank, is_right, small_config
from tests.integration.disk_writer import NUM_IMAGES, SEGMENT_BYTES

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

NUM_KILLS = 10


def start_writer(folder: Path, first: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.integration.disk_writer", str(folder), str(first)],
        stdout=subprocess.PIPE,
        text=True,
    )


def kill_while_it_writes(folder: Path, first: int, after_s: float) -> tuple[set[int], set[int]]:
    """What a writer stored and evicted until it was killed."""
    writer = start_writer(folder, first)
    assert writer.stdout is not None
    said = [writer.stdout.readline()]
    time.sleep(after_s)
    writer.kill()
    said += writer.stdout.readlines()
    writer.stdout.close()
    assert writer.wait() < 0
    assert all(line.endswith("\n") for line in said)
    stored = {int(line[1:]) for line in said if line[0] == "+"}
    evicted = {int(line[1:]) for line in said if line[0] == "-"}
    return stored, evicted


async def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    dice = random.Random(7)
    expected: set[int] = set()
    num_stored = num_evicted = 0
    for turn in range(NUM_KILLS):
        stored, evicted = kill_while_it_writes(tmp_path, turn * 10**6, dice.uniform(0, 0.4))
        num_stored, num_evicted = num_stored + len(stored), num_evicted + len(evicted)
        expected = (expected | stored) - evicted

        tier = await DiskTier.open(
            [small_config(tmp_path, NUM_IMAGES)], segment_bytes=SEGMENT_BYTES
        )
        held = [int.from_bytes(each.key, "big") for each in tier.held()]
        images = [blank(number) for number in held]
        are_loaded = await tier.load(images)
        loaded = [image for image, is_loaded in zip(images, are_loaded, strict=True) if is_loaded]
        assert all(map(is_right, loaded)), "a wrong image was served"
        assert len(loaded) == len(held)
        assert expected <= set(held)
        # Evicted ones may be there again as long as nothing was written over them.
        expected = set(held)
        assert tier.stats().counters.unsound == 0
        assert tier.stats().counters.lost_segments == 0
        assert len(held) + tier.free_images(LAYOUT) == NUM_IMAGES
        await tier.close()
    assert tier.stats().journal_records < num_stored, "the journal was not rewritten"
    assert num_evicted > NUM_IMAGES


async def test_a_folder_of_a_living_process_is_refused(tmp_path: Path) -> None:
    writer = start_writer(tmp_path, 0)
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == "+0\n"
        with pytest.raises(TierError, match="in use by another node cache"):
            await DiskTier.open([small_config(tmp_path, NUM_IMAGES)])
    finally:
        writer.kill()
        writer.stdout.close()
        writer.wait()

    tier = await DiskTier.open([small_config(tmp_path, NUM_IMAGES)])
    await tier.close()


FILE_SIZE_LIMITED = """
import asyncio, resource, sys
from pathlib import Path
from cache_tiers.disk_tier import DiskTier
from cache_tiers.tier import TierError
from tests.disk_images import LAYOUT, blank, is_right, sealed, small_config

async def main():
    config = small_config(Path(sys.argv[1]), 64)
    tier = await DiskTier.open([config], segment_bytes=8 * LAYOUT.image_bytes)
    assert await tier.store([sealed(0)]) == [True]
    resource.setrlimit(resource.RLIMIT_FSIZE, (LAYOUT.image_bytes, LAYOUT.image_bytes))
    try:
        await tier.store([sealed(number) for number in range(1, 20)])
    except TierError as error:
        print(error)
    image = blank(0)
    assert await tier.load([image]) == [True] and is_right(image)
    await tier.close()

asyncio.run(main())
"""


def test_the_kernel_s_refusals_are_errors_of_the_tier(tmp_path: Path) -> None:
    """As a full disk, but one that needs no privilege to have."""
    result = subprocess.run(
        [sys.executable, "-c", FILE_SIZE_LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stderr
    assert "File too large" in result.stdout
