"""Reads the header of one GGUF file, metadata and tensor table, trusting none of its counts.

The format: github.com/ggml-org/ggml/blob/master/docs/gguf.md. The ``gguf`` package supplies the
quantized types; its own reader takes seconds for a vocabulary and loops without end on a lying
array length, so the walk over the header is done here. Whatever is wrong is a ValueError, or
`UnsupportedCheckpoint` for a type that nobody here knows; time and memory are bounded by the
limits below. Knows nothing of models.
"""

import struct
from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from engine.checkpoints.errors import UnsupportedCheckpoint

Value = bool | int | float | str | list[str] | NDArray[Any]
"""Arrays of numbers stay views of the file: as Python objects they would take ten times the room.
"""

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_HEADER_BYTES = 32 << 20  # a vocabulary of 262,144 tokens takes 6 MiB
_MAX_STRING_BYTES = 4 << 20  # chat templates are the longest: up to some hundred KiB
_MAX_ENTRIES = 1 << 16
_MAX_TENSORS = 1 << 17
_MAX_STRINGS = 1 << 20  # per array; the largest lists of merges have half a million
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
    """From the start of its file."""
    num_bytes: int
    shard: int = 0
    """Which of the model's files holds it."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """What one file says about itself."""

    metadata: dict[str, Value]
    tensors: list[GgufTensor]
    """No two overlap or share a name, and all lie within the file."""


def read_header(data: NDArray[np.uint8]) -> GgufHeader:
    """Read and check the header of the file whose bytes are ``data``."""
    cursor = _Cursor(data.data)
    num_tensors, num_entries = _read_preamble(cursor)
    metadata: dict[str, Value] = {}
    for _ in range(num_entries):
        key, value = _read_entry(cursor)
        if key in metadata:
            raise ValueError(f"metadata {key[:80]!r} stands there twice")
        metadata[key] = value
    tensors = [_read_tensor(cursor) for _ in range(num_tensors)]
    return GgufHeader(metadata, _placed(tensors, cursor, _alignment(metadata)))


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
        if self.position > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of more than {_MAX_HEADER_BYTES >> 20} MiB")
        return self._data[begin : self.position]

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def string(self) -> str:
        num_bytes = self.u64()
        if _MAX_STRING_BYTES < num_bytes <= self.remaining:
            raise ValueError(f"a text of {num_bytes} bytes")
        return str(self.take(num_bytes), "utf-8")


def _read_preamble(cursor: _Cursor) -> tuple[int, int]:
    if bytes(cursor.take(4)) != _MAGIC:
        raise ValueError("it does not begin with 'GGUF'")
    version = cursor.u32()
    if version not in _VERSIONS:
        raise ValueError(f"version {version}; only little-endian versions 2 and 3 are understood")
    num_tensors, num_entries = cursor.u64(), cursor.u64()
    if num_tensors > _MAX_TENSORS or num_entries > _MAX_ENTRIES:
        raise ValueError(f"{num_tensors} tensors and {num_entries} metadata entries")
    return num_tensors, num_entries


def _read_entry(cursor: _Cursor) -> tuple[str, Value]:
    key = cursor.string()
    value_type = cursor.u32()
    if value_type == _STRING:
        return key, cursor.string()
    if value_type != _ARRAY:
        scalar: bool | int | float = _read_scalars(cursor, value_type, 1)[0].item()
        return key, scalar
    item_type, count = cursor.u32(), cursor.u64()
    if item_type == _ARRAY:
        raise ValueError(f"metadata {key[:80]!r} is an array of arrays")
    if item_type != _STRING:
        return key, _read_scalars(cursor, item_type, count)
    if count > _MAX_STRINGS:
        raise ValueError(f"{count} texts announced in metadata {key[:80]!r}")
    return key, [cursor.string() for _ in range(count)]


def _read_scalars(cursor: _Cursor, value_type: int, count: int) -> NDArray[Any]:
    if value_type not in _SCALARS:
        raise ValueError(f"unknown value type {value_type}")
    dtype = np.dtype(_SCALARS[value_type])
    return np.frombuffer(cursor.take(count * dtype.itemsize), dtype)


def _alignment(metadata: dict[str, Value]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment < 2**31 or alignment & (alignment - 1):
        raise ValueError(f"alignment {str(alignment)[:40]}")
    return alignment


def _read_tensor(cursor: _Cursor) -> GgufTensor:
    """One row of the table; its offset counts from the start of the data."""
    name = cursor.string()
    num_dimensions = cursor.u32()
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise ValueError(f"tensor {name[:80]!r} has {num_dimensions} dimensions")
    shape = tuple(cursor.u64() for _ in range(num_dimensions))[::-1]
    quantization = _quantization(name, cursor.u32())
    block_values, block_bytes = GGML_QUANT_SIZES[quantization]
    if 0 in shape or shape[-1] % block_values:
        raise ValueError(f"tensor {name[:80]!r} of shape {shape} is no whole number of blocks")
    num_bytes = prod(shape) // block_values * block_bytes
    return GgufTensor(name, shape, quantization, cursor.u64(), num_bytes)


def _quantization(name: str, number: int) -> GGMLQuantizationType:
    try:
        return GGMLQuantizationType(number)
    except ValueError:
        raise UnsupportedCheckpoint(
            f"tensor {name[:80]!r} is stored as type {number}, which is none of GGML's: the file "
            "is damaged, or newer than the gguf package installed here."
        ) from None


def _placed(entries: Iterable[GgufTensor], cursor: _Cursor, alignment: int) -> list[GgufTensor]:
    """The tensors with offsets from the start of the file.

    The data begins at the next multiple of ``alignment``.
    """
    padding = -cursor.position % alignment
    data_start = cursor.position + padding
    data_bytes = cursor.remaining - padding
    tensors = sorted(entries, key=lambda tensor: tensor.offset_bytes)
    names, end = set(), 0
    for tensor in tensors:
        if tensor.name in names:
            raise ValueError(f"two tensors are called {tensor.name[:80]!r}")
        if tensor.offset_bytes < end:
            raise ValueError(f"tensor {tensor.name[:80]!r} overlaps the one before")
        names.add(tensor.name)
        end = tensor.offset_bytes + tensor.num_bytes
        if end > data_bytes:
            raise ValueError(f"tensor {tensor.name[:80]!r} reaches beyond the end of the file")
    return [replace(item, offset_bytes=data_start + item.offset_bytes) for item in tensors]
