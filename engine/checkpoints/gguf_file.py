"""Reads a GGUF file's metadata and tensor table, trusting none of its counts.

The format: github.com/ggml-org/ggml/blob/master/docs/gguf.md. The ``gguf`` package supplies the
quantized types and their arithmetic; its own reader takes seconds for a vocabulary and loops
without end on a lying array length, so the walk over the header is done here. Knows nothing of
models.
"""

import struct
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Self

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from engine.checkpoints.errors import CorruptCheckpoint, UnsupportedCheckpoint

Value = bool | int | float | str | list[int] | list[float] | list[bool] | list[str]

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
"""Value type of the format: its numpy name."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """Where a tensor lies and how it is stored."""

    name: str
    shape: tuple[int, ...]
    """Row-major: the reverse of the file's own order."""
    quantization: GGMLQuantizationType
    offset_bytes: int
    num_bytes: int


class GgufFile:
    """A mapped GGUF file whose table was checked against the file's size."""

    def __init__(
        self,
        path: Path,
        data: NDArray[np.uint8],
        metadata: dict[str, Value],
        tensors: dict[str, GgufTensor],
    ) -> None:
        self.path = path
        self.metadata = metadata
        self.tensors = tensors
        self._data = data

    @classmethod
    def open(cls, path: Path) -> Self:
        """Map the file and read its header; raises `CorruptCheckpoint` if it is damaged."""
        try:
            data = np.memmap(path, dtype=np.uint8, mode="r")
            cursor = _Cursor(data.data)
            num_tensors, num_values = _read_preamble(cursor)
            metadata = dict(_read_entry(cursor) for _ in range(num_values))
            tensors = _read_tensors(cursor, num_tensors, _alignment(metadata))
        except (ValueError, OverflowError) as error:
            raise CorruptCheckpoint(
                f"{path} is not a sound GGUF file ({error}). Download it again."
            ) from error
        return cls(path, data, metadata, tensors)

    def read(self, tensor: GgufTensor) -> NDArray[np.float32]:
        """The tensor's values, dequantized, in its row-major shape."""
        raw = self._data[tensor.offset_bytes : tensor.offset_bytes + tensor.num_bytes]
        rows = raw.reshape(prod(tensor.shape[:-1]), -1)
        try:
            values = np.asarray(dequantize(rows, tensor.quantization), dtype=np.float32)
        except NotImplementedError as error:
            raise UnsupportedCheckpoint(
                f"{self.path}: tensor {tensor.name!r} is stored as {tensor.quantization.name}, "
                "which cannot be dequantized. Use another quantization of the model."
            ) from error
        if not np.isfinite(values).all():
            raise CorruptCheckpoint(
                f"{self.path}: tensor {tensor.name!r} holds NaN or infinity. Download it again."
            )
        return values.reshape(tensor.shape)


class _Cursor:
    """Reads forward; past the end is a ValueError, so that no count outruns the file."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.position = 0

    @property
    def remaining(self) -> int:
        return len(self._data) - self.position

    def take(self, num_bytes: int) -> memoryview:
        if num_bytes > self.remaining:
            raise ValueError(f"{num_bytes} bytes announced where {self.remaining} are left")
        begin = self.position
        self.position += num_bytes
        return self._data[begin : self.position]

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def string(self) -> str:
        return bytes(self.take(self.u64())).decode("utf-8")


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    if bytes(cursor.take(4)) != _MAGIC:
        raise ValueError("it does not begin with 'GGUF'")
    version = cursor.u32()
    if version not in _VERSIONS:
        raise ValueError(f"version {version}; only little-endian versions 2 and 3 are understood")
    return cursor.u64(), cursor.u64()


def _read_entry(cursor: _Cursor) -> tuple[str, Value]:
    key = cursor.string()
    value_type = cursor.u32()
    if value_type == _STRING:
        return key, cursor.string()
    if value_type != _ARRAY:
        return key, _read_scalars(cursor, value_type, 1)[0]
    item_type, count = cursor.u32(), cursor.u64()
    if item_type == _STRING:
        # An empty string takes eight bytes, so a count beyond the file stops at its end.
        return key, [cursor.string() for _ in range(count)]
    return key, _read_scalars(cursor, item_type, count)


def _read_scalars(cursor: _Cursor, value_type: int, count: int) -> list[int] | list[float]:
    if value_type not in _SCALARS:
        raise ValueError(f"unknown value type {value_type}")
    dtype = np.dtype(_SCALARS[value_type])
    values = np.frombuffer(cursor.take(count * dtype.itemsize), dtype)
    return values.tolist()  # type: ignore[no-any-return]


def _alignment(metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"alignment {alignment!r}")
    return alignment


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    """Read the table; the data begins at the next multiple of ``alignment``."""
    entries = [_read_tensor(cursor) for _ in range(count)]
    padding = -cursor.position % alignment
    data_start = cursor.position + padding
    data_bytes = cursor.remaining - padding
    tensors = {}
    for tensor in entries:
        if tensor.offset_bytes + tensor.num_bytes > data_bytes:
            raise ValueError(f"tensor {tensor.name!r} reaches beyond the end of the file")
        if tensor.name in tensors:
            raise ValueError(f"two tensors are called {tensor.name!r}")
        tensors[tensor.name] = replace(tensor, offset_bytes=data_start + tensor.offset_bytes)
    return tensors


def _read_tensor(cursor: _Cursor) -> GgufTensor:
    """One row of the table; its offset counts from the start of the data."""
    name = cursor.string()
    num_dimensions = cursor.u32()
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name!r} has {num_dimensions} dimensions")
    shape = tuple(cursor.u64() for _ in range(num_dimensions))[::-1]
    quantization = GGMLQuantizationType(cursor.u32())
    block_values, block_bytes = GGML_QUANT_SIZES[quantization]
    if 0 in shape or shape[-1] % block_values:
        raise ValueError(f"tensor {name!r} of shape {shape} is no whole number of blocks")
    num_bytes = prod(shape) // block_values * block_bytes
    return GgufTensor(name, shape, quantization, cursor.u64(), num_bytes)
