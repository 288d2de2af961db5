"""A process that reads a staged checkpoint as a rank does, and says how fast:
``python -m benchmarks.cold_start_mapping FOLDER``.

All tensors are mapped, and every byte is copied through a small buffer, as on its way to an
accelerator, with no page in this process's tables before; then all are read into memory of their
own, as a rank reads the part that it holds. The limits are copies out of the same memory, once
mapped: into other memory that is there, and into as much new memory.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.machine import REPOSITORY
from engine.checkpoints.store import open_checkpoint
from engine.tensor_file import TensorFile

_BUFFER_BYTES = 1024**2
_MEMORY_BYTES = 256 * 1024**2
"""Far more than caches hold."""
_TIMEOUT_S = 300.0

Bytes = NDArray[np.uint8]


class Mapping(msgspec.Struct, frozen=True):
    """Seconds for all tensors."""

    num_bytes: int
    mapped_s: float
    """To map all, and to have read every byte."""
    memcpy_s: float
    """To copy them to memory that is there."""
    read_s: float
    """To have them in memory of one's own."""
    copied_s: float
    """The same out of what is mapped already."""


def map_in_process(folder: Path) -> Mapping:
    """Of a checkpoint, in a process that has not mapped it before. Raises ``OSError``."""
    command = [sys.executable, "-m", __name__, str(folder)]
    try:
        done = subprocess.run(
            command, cwd=REPOSITORY, capture_output=True, timeout=_TIMEOUT_S, check=True
        )
    except subprocess.CalledProcessError as error:
        raise OSError(f"{folder} can't be mapped: {error.stderr.decode()[-500:]}") from error
    return msgspec.json.decode(done.stdout, type=Mapping)


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    files = [TensorFile(path) for path in open_checkpoint(folder).weights_paths]
    buffer = np.ones(_BUFFER_BYTES, np.uint8)
    memory = np.ones(_MEMORY_BYTES, np.uint8)
    mapped: list[Bytes] = []

    def map_all() -> None:
        mapped.extend(_bytes_of(file.map(name)) for file in files for name in file.names)
        _pass_through(mapped, buffer)

    def read_all() -> None:
        for file in files:
            for name in file.names:
                file.read(name)

    def copy_all() -> None:
        for tensor in mapped:
            tensor.copy()

    mapped_s = _seconds(map_all)
    memcpy_s = _seconds(lambda: _pass_through(mapped, memory))
    read_s, copied_s = _seconds(read_all), _seconds(copy_all)
    num_bytes = sum(tensor.nbytes for tensor in mapped)
    line = msgspec.json.encode(Mapping(num_bytes, mapped_s, memcpy_s, read_s, copied_s))
    sys.stdout.buffer.write(line)


def _seconds(work: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def _bytes_of(tensor: torch.Tensor) -> Bytes:
    values: Bytes = tensor.reshape(-1).view(torch.uint8).numpy()
    return values


def _pass_through(tensors: list[Bytes], memory: Bytes) -> None:
    """Copy all, over and over into the same memory."""
    position = 0
    for values in tensors:
        for begin in range(0, len(values), _BUFFER_BYTES):
            part = values[begin : begin + _BUFFER_BYTES]
            if position + len(part) > len(memory):
                position = 0
            memory[position : position + len(part)] = part
            position += len(part)


if __name__ == "__main__":
    main()
