"""Damages small model files at random and reads them, in a process of its own whose memory tells.

    python -m tests.integration.checkpoint_fuzzer SEED SECONDS SCRATCH FILE...

Prints a JSON object: how many files were read and refused, the slowest one and the peak of memory.
Any error but `CheckpointError` ends it.
"""

import json
import random
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from engine.checkpoints.errors import CheckpointError
from engine.checkpoints.gguf_convert import convert_gguf
from engine.checkpoints.safetensors_file import check_safetensors
from tests.damage import TELLING_NUMBERS

_HEADER_BYTES = 8192


def damaged(whole: bytes, dice: random.Random) -> bytes:
    """Bytes overwritten, numbers replaced, pieces copied elsewhere, the end cut off."""
    content = bytearray(whole)
    for _ in range(dice.choice((1, 1, 2, 3, 8))):
        position = dice.randrange(min(len(content), _HEADER_BYTES))
        match dice.randrange(4):
            case 0:
                content[position] = dice.randrange(256)
            case 1:
                width = dice.choice((4, 8))
                number = dice.choice(TELLING_NUMBERS) % 2 ** (8 * width)
                content[position : position + width] = number.to_bytes(width, "little")
            case 2:
                length, target = dice.randrange(64), dice.randrange(len(content))
                content[target : target + length] = content[position : position + length]
            case 3:
                del content[position : position + dice.randrange(1, 64)]
    if dice.random() < 0.2:
        del content[dice.randrange(len(content)) :]
    return bytes(content)


def read(path: Path, folder: Path) -> str:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        if path.suffix == ".gguf":
            convert_gguf(path, folder)
            check_safetensors(folder / "model.safetensors")
        else:
            check_safetensors(path)
    except CheckpointError:
        return "refused"
    return "read"


def main(seed: int, seconds: float, scratch: Path, files: list[Path]) -> None:
    dice = random.Random(seed)
    contents = [(path.suffix, path.read_bytes()) for path in files]
    outcomes: Counter[str] = Counter()
    slowest_s = 0.0
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        suffix, whole = dice.choice(contents)
        path = scratch / f"damaged{suffix}"
        path.write_bytes(damaged(whole, dice))
        begin = time.process_time()
        outcomes[read(path, scratch / "out")] += 1
        slowest_s = max(slowest_s, time.process_time() - begin)
    found = {**outcomes, "slowest_s": slowest_s, "peak_mib": _peak_mib()}
    sys.stdout.write(json.dumps(found))


def _peak_mib() -> int:
    """Of this program alone: getrusage would count what its parent held before."""
    status = Path("/proc/self/status").read_text("ascii")
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) >> 10


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3]), [*map(Path, sys.argv[4:])])
