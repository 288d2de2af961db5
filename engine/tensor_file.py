"""Reads tensors, or parts of them, from a safetensors file into memory that others own.

Reads, does not map: no byte but the wanted ones is ever in this process's memory. Must not know
what a tensor is for.
"""

import os
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.checkpoints.safetensors_file import read_header
from engine.errors import CheckpointError
from engine.models.shard import TensorPart


class TensorFile:
    """One file, and where its tensors lie."""

    def __init__(self, path: Path) -> None:
        """Raises ``OSError`` or ``ValueError`` if it can't be read or is no such file."""
        try:
            self._data_start, self._entries = read_header(path)
        except (RecursionError, msgspec.ValidationError) as error:
            raise ValueError(str(error)) from error
        self._path = path

    def read_into(
        self, target: Tensor, name: str, shape: tuple[int, ...], part: TensorPart | None
    ) -> None:
        """Fill ``target``, contiguous, on the CPU and of the dtype that is stored, with ``part`` of
        the tensor called ``name``, which as a whole has ``shape``."""
        begin, end = (self._data_start + offset for offset in self._entries[name].data_offsets)
        values = target.reshape(-1).view(torch.uint8).numpy()
        with self._path.open("rb", buffering=0) as file:
            # Every rank of the node reads its own part, so that soon all of it is wanted.
            os.posix_fadvise(file.fileno(), begin, end - begin, os.POSIX_FADV_WILLNEED)
            if part is None:
                self._fill(values, file.fileno(), begin)
                return
            row_bytes, element = (end - begin) // shape[0], target.element_size()
            if part.dim == 0:
                self._fill(values, file.fileno(), begin + part.span.start * row_bytes)
                return
            assert len(shape) == 2, "only matrices are cut by columns"
            first = begin + part.span.start * element
            for index, row in enumerate(values.reshape(shape[0], -1)):
                self._fill(row, file.fileno(), first + index * row_bytes)

    def _fill(self, values: NDArray[np.uint8], descriptor: int, offset: int) -> None:
        left = memoryview(values)  # type: ignore[arg-type]
        while left:
            num_read = os.preadv(descriptor, [left], offset)
            if num_read == 0:
                raise CheckpointError(
                    f"{self._path} ended while it was read: something changed it. Pull the model "
                    "again."
                )
            left, offset = left[num_read:], offset + num_read
