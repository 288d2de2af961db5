"""A process that stores and evicts images on a disk tier until it is killed.

It prints ``+N`` once image N is acknowledged, and ``-N`` before it evicts it.
"""

import asyncio
import random
import sys
from pathlib import Path

from cache_tiers.disk_tier import DiskTier
from tests.disk_images import LAYOUT, key_of, sealed, small_config

NUM_IMAGES = 512
SEGMENT_BYTES = 64 * LAYOUT.image_bytes


async def write_for_ever(folder: Path, first: int) -> None:
    """Image numbers begin at ``first``."""
    dice = random.Random(first)
    tier = await DiskTier.open([small_config(folder, NUM_IMAGES)], segment_bytes=SEGMENT_BYTES)
    held = [int.from_bytes(each.key, "big") for each in tier.held()]
    number = first
    while True:
        batch = range(number, number + dice.randint(1, 64))
        number = batch.stop
        dice.shuffle(held)
        num_evicted = len(batch) - tier.free_images(LAYOUT)
        if num_evicted > 0:
            evicted, held = held[:num_evicted], held[num_evicted:]
            say("-", evicted)
            tier.evict(LAYOUT, [key_of(each) for each in evicted])
        stored = await tier.store([sealed(each) for each in batch])
        acknowledged = [each for each, is_held in zip(batch, stored, strict=True) if is_held]
        say("+", acknowledged)
        held += acknowledged


def say(sign: str, numbers: list[int]) -> None:
    """One line a number, on its way before this returns."""
    sys.stdout.write("".join(f"{sign}{number}\n" for number in numbers))
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(write_for_ever(Path(sys.argv[1]), int(sys.argv[2])))
