"""A process that stages a small model in a folder again and again, until it is killed.

Arguments: the root of the link folders. Prints a line when the first one is made.
"""

import sys
from pathlib import Path

from cache_tiers.weights.arriving_file import ArrivingFile
from cache_tiers.weights.link_folder import LinkFolder
from cache_tiers.weights.messages import WeightFile

CONTENT = b"weights" * 10_000


def main() -> None:
    root = Path(sys.argv[1])
    links = LinkFolder(root)
    file = ArrivingFile.in_memory(WeightFile("model.safetensors", len(CONTENT)))
    with file.chunk(0) as memory:
        memory[:] = CONTENT
    file.mark(0)
    file.seal()
    number = 0
    while True:
        path = root / "smol" / f"{number % 3}"
        links.make(path, {"config.json": b"{}"}, {file.file.name: file}, b"manifest")
        links.link(path, "packed-int8-0-of-1.weights", file)
        links.remove(root / "smol" / f"{(number + 1) % 3}")
        if number == 0:
            sys.stdout.write("ready\n")
            sys.stdout.flush()
        number += 1


if __name__ == "__main__":
    main()
