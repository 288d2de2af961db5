"""The tensors of one safetensors file: mapped, or read into memory of their own, whole or in part.

The library's own reader touches pages of every tensor that it maps, and all pages of one whose
columns it cuts; here a mapped tensor costs nothing until it is used, and reading one leaves no
byte but the wanted ones in this process's memory. Must not know what a tensor is for.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.checkpoints.safetensors_file import HeaderEntry, check_safetensors
from engine.errors import CheckpointError
from engine.models.shard import TensorPart

_DTYPES = {
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F32": torch.float32,
    "F64": torch.float64,
}


class TensorFile:
    """One file, and where its tensors lie."""

    def __init__(self, path: Path) -> None:
        """Raises ``OSError`` if it can't be read and `CheckpointError` if it is no such file."""
        self._data_start, self._entries = check_safetensors(path)
        self._path = path
        self._storage: Any = None  # torch's stubs don't say what it returns

    @property
    def names(self) -> Iterable[str]:
        return self._entries

    def shape_of(self, name: str) -> tuple[int, ...]:
        return tuple(self._entries[name].shape)

    def dtype_of(self, name: str) -> torch.dtype:
        """Raises `CheckpointError` if it is none that a model is computed from."""
        stored = self._entries[name].dtype
        dtype = _DTYPES.get(stored)
        if dtype is None:
            raise CheckpointError(
                f"tensor {name!r} is stored as {stored}, which is not supported: use a checkpoint "
                "in bfloat16, float16 or float32."
            )
        return dtype

    def map(self, name: str) -> Tensor:
        """A view of the mapped file, not to be written to."""
        dtype = self.dtype_of(name)
        if self._storage is None:
            size = self._path.stat().st_size
            self._storage = torch.UntypedStorage.from_file(str(self._path), False, size)
        begin, end = (self._data_start + offset for offset in self._entries[name].data_offsets)
        tensor = torch.empty(0, dtype=dtype).set_(self._storage[begin:end])
        return tensor.view(self.shape_of(name))

    def read(self, name: str, part: TensorPart | None = None) -> Tensor:
        """A copy in the type that is stored."""
        entry, whole = self._entries[name], self.shape_of(name)
        shape = whole if part is None else part.shape_of(whole)
        tensor = torch.empty(shape, dtype=self.dtype_of(name))
        values: NDArray[np.uint8] = tensor.reshape(-1).view(torch.uint8).numpy()
        with self._path.open("rb", buffering=0) as file:
            begin, length = self._begin(entry), entry.data_offsets[1] - entry.data_offsets[0]
            # Every rank of the node reads its own part, so that soon all of it is wanted.
            os.posix_fadvise(file.fileno(), begin, length, os.POSIX_FADV_WILLNEED)
            if part is None or part.dim == 0:
                self._fill(values, file.fileno(), self._begin(entry, part))
                return tensor
            assert len(whole) == 2, "only matrices are cut by columns"
            begin += part.span.start * tensor.element_size()
            row_bytes = length // whole[0]
            for index, row in enumerate(values.reshape(whole[0], -1)):
                self._fill(row, file.fileno(), begin + index * row_bytes)
        return tensor

    def _begin(self, entry: HeaderEntry, part: TensorPart | None = None) -> int:
        """Where the tensor, or a part of its rows, begins in the file."""
        begin, end = entry.data_offsets
        if part is not None:
            begin += (end - begin) // entry.shape[0] * part.span.start
        return self._data_start + begin

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
