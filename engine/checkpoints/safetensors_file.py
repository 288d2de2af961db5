"""Writes bfloat16 safetensors some rows at a time, and checks a file's header without reading its
data.

The format (github.com/huggingface/safetensors): eight bytes of header length, a JSON header, then
the tensors. The library's own writer wants all tensors in memory at once; this one holds a few
rows. Needs no torch.
"""

import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.checkpoints.errors import CorruptCheckpoint

_ALIGN_BYTES = 64  # mapped tensors then start on a cache line
_MAX_HEADER_BYTES = 16 << 20  # 100,000 tensors; parsed, a header takes up to 20 times its size
_MAX_DIMENSIONS = 16
_MAX_SIZE = 2**62
_DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name and row-major shape of a tensor to be written."""

    name: str
    shape: tuple[int, ...]


_Size = Annotated[int, msgspec.Meta(ge=0, le=_MAX_SIZE)]


class HeaderEntry(msgspec.Struct, frozen=True):
    """Where a tensor lies: ``data_offsets`` count from where the data begins."""

    dtype: str
    shape: Annotated[list[_Size], msgspec.Meta(max_length=_MAX_DIMENSIONS)]
    data_offsets: tuple[_Size, _Size]


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even. ``values`` must be finite."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Adding half of the dropped part (less one for an even result) carries just when it rounds up.
    return ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def write_bfloat16(
    path: Path,
    specs: Sequence[TensorSpec],
    read_rows: Callable[[TensorSpec], Iterable[NDArray[np.float32]]],
) -> None:
    """Write ``specs`` in order; ``read_rows`` gives the float32 values of one tensor in pieces."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for spec in specs:
        end = offset + 2 * prod(spec.shape)
        header[spec.name] = {
            "dtype": "BF16",
            "shape": spec.shape,
            "data_offsets": (offset, end),
        }
        offset = end
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-(8 + len(encoded)) % _ALIGN_BYTES)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        for spec in specs:
            num_values = 0
            for values in read_rows(spec):
                file.write(float32_to_bfloat16(values).astype("<u2", copy=False).data)
                num_values += values.size
            assert num_values == prod(spec.shape), (spec, num_values)


def check_safetensors(path: Path) -> tuple[int, dict[str, HeaderEntry]]:
    """Where the data begins in the file, and its tensors by name.

    Raises `CorruptCheckpoint` unless the header parses and its tensors cover the file without gap
    or overlap.
    """
    try:
        data_start, entries = _read_header(path)
        data_bytes = path.stat().st_size - data_start
        position = 0
        for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
            _check_place(name, entry, position)
            position = entry.data_offsets[1]
        if position != data_bytes:
            raise ValueError(f"tensors take {position} bytes, the file has {data_bytes}")
        return data_start, entries
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise CorruptCheckpoint(
            f"{path} is not a complete safetensors file ({error}). Pull the model again."
        ) from error


def _check_place(name: str, entry: HeaderEntry, position: int) -> None:
    if entry.dtype not in _DTYPE_BITS:
        raise ValueError(f"tensor {name[:80]!r} is of unknown type {entry.dtype[:40]!r}")
    begin, end = entry.data_offsets
    bits = prod(entry.shape) * _DTYPE_BITS[entry.dtype]
    if begin != position or (end - begin) * 8 != bits:
        raise ValueError(f"tensor {name[:80]!r} does not fit its place in the file")


def _read_header(path: Path) -> tuple[int, dict[str, HeaderEntry]]:
    """What `check_safetensors` returns, not checked."""
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ValueError("shorter than its length field")
        (length,) = struct.unpack("<Q", prefix)
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        encoded = file.read(length)
    # Other decoders keep the last of equal keys: a file may mean one thing here, another there.
    fields = json.loads(encoded, object_pairs_hook=_distinct)
    if not isinstance(fields, dict):
        raise ValueError("its header is no object")
    fields.pop("__metadata__", None)
    return 8 + length, msgspec.convert(fields, dict[str, HeaderEntry])


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("its header holds a key twice")
    return fields
