"""Headers that lie: every one is a clear error, at once and in little memory."""

import struct
import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from engine.checkpoints.errors import CheckpointError, CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_file import GgufFile

U32, U64, STRING, ARRAY = 4, 10, 8, 9
F32 = GGMLQuantizationType.F32


def text(value: bytes, announced: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if announced is None else announced) + value


def entry(key: bytes, value_type: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", value_type) + value


def array(key: bytes, item_type: int, count: int, items: bytes = b"") -> bytes:
    return entry(key, ARRAY, struct.pack("<IQ", item_type, count) + items)


def tensor(name: bytes, shape: Sequence[int], offset: int = 0, kind: int = F32) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return text(name) + dimensions + struct.pack("<IQ", kind, offset)


def gguf_bytes(
    entries: Iterable[bytes] = (),
    tensors: Iterable[bytes] = (),
    *,
    num_entries: int | None = None,
    num_tensors: int | None = None,
    data: bytes = bytes(64),
) -> bytes:
    entries, tensors = list(entries), list(tensors)
    header = b"GGUF" + struct.pack(
        "<IQQ",
        3,
        len(tensors) if num_tensors is None else num_tensors,
        len(entries) if num_entries is None else num_entries,
    )
    header += b"".join(entries) + b"".join(tensors)
    return header + bytes(-len(header) % 32) + data


HOSTILE = {
    "nothing": (b"", "empty file"),
    "another format": (b"PK\x03\x04" + bytes(100), "begin with 'GGUF'"),
    "version 1": (b"GGUF\x01\0\0\0" + bytes(100), "version 1"),
    "big-endian": (b"GGUF\0\0\0\x03" + bytes(100), "little-endian"),
    "2^60 entries": (gguf_bytes(num_entries=2**60), "metadata entries"),
    "2^60 tensors": (gguf_bytes(num_tensors=2**60), "tensors"),
    "more entries than there are": (gguf_bytes(num_entries=60000, data=b""), "announced"),
    "a key of 2^63 bytes": (gguf_bytes([text(b"", 2**63)]), "announced"),
    "a text of 2^63 bytes": (gguf_bytes([entry(b"k", STRING, text(b"", 2**63))]), "announced"),
    "a text of 5 MiB": (gguf_bytes([entry(b"k", STRING, text(bytes(5 << 20)))]), "a text of"),
    "text that is not UTF-8": (gguf_bytes([entry(b"k", STRING, text(b"\xff\xfe"))]), "utf-8"),
    "10^7 tokens": (gguf_bytes([array(b"k", STRING, 10**7, bytes(1000))]), "10000000 texts"),
    "2^60 numbers": (gguf_bytes([array(b"k", U32, 2**60)]), "announced"),
    "2^64 - 1 numbers": (gguf_bytes([array(b"k", U64, 2**64 - 1)]), "announced"),
    "an array of arrays": (gguf_bytes([array(b"k", ARRAY, 1)]), "array of arrays"),
    "an unknown value type": (gguf_bytes([entry(b"k", 77, b"")]), "unknown value type 77"),
    "a key twice": (gguf_bytes([entry(b"k", U32, bytes(4))] * 2), "twice"),
    "alignment 0": (
        gguf_bytes([entry(b"general.alignment", U32, bytes(4))]), "alignment 0"),
    "alignment 24": (
        gguf_bytes([entry(b"general.alignment", U32, struct.pack("<I", 24))]), "alignment 24"),
    "a huge alignment": (
        gguf_bytes(
            [entry(b"general.alignment", U32, struct.pack("<I", 2**30))], [tensor(b"t", [1])]),
        "beyond the end"),
    "alignment of words": (
        gguf_bytes([entry(b"general.alignment", STRING, text(b"wide"))]), "alignment wide"),
    "no dimensions": (gguf_bytes(tensors=[tensor(b"t", [])]), "0 dimensions"),
    "five dimensions": (gguf_bytes(tensors=[tensor(b"t", [1] * 5)]), "5 dimensions"),
    "2^32 - 1 dimensions": (
        gguf_bytes(tensors=[text(b"t") + b"\xff" * 4]), "4294967295 dimensions"),
    "a dimension of 0": (gguf_bytes(tensors=[tensor(b"t", [4, 0])]), "whole number of blocks"),
    "dimensions of 2^63": (gguf_bytes(tensors=[tensor(b"t", [2**63] * 4)]), "beyond the end"),
    "half a block": (
        gguf_bytes(tensors=[tensor(b"t", [33], kind=GGMLQuantizationType.Q4_0)]), "blocks"),
    "an offset beyond the end": (
        gguf_bytes(tensors=[tensor(b"t", [4], offset=2**40)]), "beyond the end"),
    "an offset of 2^64 - 1": (
        gguf_bytes(tensors=[tensor(b"t", [4], offset=2**64 - 1)]), "beyond the end"),
    "tensors that overlap": (
        gguf_bytes(tensors=[tensor(b"t", [8]), tensor(b"u", [8], offset=16)]), "overlaps"),
    "two tensors of one name": (
        gguf_bytes(tensors=[tensor(b"t", [4]), tensor(b"t", [4], offset=32)]), "two tensors"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_lying_header_is_corrupt_and_costs_little(tmp_path: Path, name: str) -> None:
    content, said = HOSTILE[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpoint, match=said):
            GgufFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", [4, 32, 97, 2**32 - 1])
def test_a_quantization_that_nobody_knows_is_named(tmp_path: Path, number: int) -> None:
    path = tmp_path / "new.gguf"
    path.write_bytes(gguf_bytes(tensors=[tensor(b"t", [4], kind=number)]))
    with pytest.raises(UnsupportedCheckpoint, match=f"'t' is stored as type {number}"):
        GgufFile.open(path)


def test_arrays_of_numbers_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "wide.gguf"
    path.write_bytes(gguf_bytes([array(b"k", U32, 1 << 20, bytes(4 << 20))]))
    tracemalloc.start()
    try:
        file = GgufFile.open(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert len(file.metadata["k"]) == 1 << 20  # type: ignore[arg-type]


def test_a_header_beyond_the_limit_is_corrupt(tmp_path: Path) -> None:
    path = tmp_path / "long.gguf"
    with path.open("wb") as sparse:
        sparse.write(gguf_bytes([array(b"k", U32, 10 << 20)], data=b""))
        sparse.truncate(100 << 20)
    with pytest.raises(CheckpointError, match="header of more than 32 MiB"):
        GgufFile.open(path)
