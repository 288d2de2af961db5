"""Writes the content of a file to the disk as a node cache does, in chunks.

Arguments: the file, the copy, and how many bytes a second. Prints a line before it begins.
"""

import asyncio
import sys
from pathlib import Path

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.disk_reader import read_from_disk
from cache_tiers.weights.disk_writer import write_to_disk
from cache_tiers.weights.errors import WeightsError
from cache_tiers.weights.messages import WeightFile


async def copy(source: Path, num_bytes: int, path: Path, max_bytes_per_s: float) -> None:
    file = ArrivingFile.in_memory(WeightFile(source.name, num_bytes))
    await read_from_disk(source.parent, [file])
    sys.stdout.write("begins\n")
    sys.stdout.flush()
    await write_to_disk(file, path, max_bytes_per_s=max_bytes_per_s)


if __name__ == "__main__":
    try:
        source = Path(sys.argv[1])
        num_bytes = source.stat().st_size
        asyncio.run(copy(source, num_bytes, Path(sys.argv[2]), float(sys.argv[3])))
    except WeightsError as error:
        sys.exit(str(error))
