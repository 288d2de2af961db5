"""Writes bfloat16 safetensors tensor by tensor, and checks a file's header without reading its
data.

The format (github.com/huggingface/safetensors): eight bytes of header length, a JSON header, then
the tensors. The library's own writer wants all tensors in memory at once; this one holds a single
tensor. Needs no torch.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine.checkpoints.errors import CorruptCheckpoint

_ALIGN_BYTES = 64  # mapped tensors then start on a cache line
_MAX_HEADER_BYTES = 100 << 20  # the limit of the reference implementation
_DTYPE_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16, "F8_E4M3": 8, "F8_E5M2": 8,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Name and row-major shape of a tensor to be written."""

    name: str
    shape: tuple[int, ...]


class _HeaderEntry(msgspec.Struct, frozen=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def float32_to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even. ``values`` must be finite."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    # Adding half of the dropped part (less one for an even result) carries just when it rounds up.
    return ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def write_bfloat16(
    path: Path,
    specs: Sequence[TensorSpec],
    read: Callable[[TensorSpec], NDArray[np.float32]],
) -> None:
    """Write ``specs`` in order; ``read`` gives the float32 values of one tensor at a time."""
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
            values = read(spec)
            assert values.shape == spec.shape, (spec, values.shape)
            file.write(float32_to_bfloat16(values).astype("<u2", copy=False).data)


def check_safetensors(path: Path) -> None:
    """Raise `CorruptCheckpoint` unless the header parses and its tensors cover the file without gap
    or overlap.
    """
    try:
        entries = _read_header(path)
        data_bytes = path.stat().st_size - entries.data_start
        position = 0
        for name, entry in sorted(entries.tensors.items(), key=lambda item: item[1].data_offsets):
            begin, end = entry.data_offsets
            bits = prod(entry.shape) * _DTYPE_BITS[entry.dtype]
            if min(entry.shape, default=1) < 0 or begin != position or (end - begin) * 8 != bits:
                raise ValueError(f"tensor {name!r} does not fit its place in the file")
            position = end
        if position != data_bytes:
            raise ValueError(f"tensors take {position} bytes, the file has {data_bytes}")
    except (ValueError, KeyError, msgspec.MsgspecError) as error:
        raise CorruptCheckpoint(
            f"{path} is not a complete safetensors file ({error}). Pull the model again."
        ) from error


@dataclass(frozen=True, slots=True)
class _Header:
    data_start: int
    tensors: dict[str, _HeaderEntry]


def _read_header(path: Path) -> _Header:
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise ValueError("shorter than its length field")
        (length,) = struct.unpack("<Q", prefix)
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"a header of {length} bytes")
        fields = msgspec.json.decode(file.read(length), type=dict[str, msgspec.Raw])
    fields.pop("__metadata__", None)
    tensors = {name: msgspec.json.decode(raw, type=_HeaderEntry) for name, raw in fields.items()}
    return _Header(8 + length, tensors)
