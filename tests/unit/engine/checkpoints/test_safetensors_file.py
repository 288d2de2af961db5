"""Writing in pieces, and headers that lie: every one is a clear error in little memory."""

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine.checkpoints.errors import CorruptCheckpoint
from engine.checkpoints.safetensors_file import TensorSpec, check_safetensors, write_bfloat16
from tests.damage import Damage, damages

SOUND = {"t": torch.arange(8, dtype=torch.float32).reshape(2, 4), "u": torch.ones(3)}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "model.safetensors"
    save_file(SOUND, path)
    check_safetensors(path)
    return path.read_bytes()


def with_header(header: Any, data: bytes = bytes(16), length: int | None = None) -> bytes:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(encoded) if length is None else length) + encoded + data


def entry(shape: Any = (4,), begin: Any = 0, end: Any = 16, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HOSTILE = {
    "nothing": b"",
    "half a length": b"\0\0\0",
    "no header": struct.pack("<Q", 0),
    "a header of 2^63 bytes": with_header({"t": entry()}, length=2**63),
    "a header beyond the file": with_header({"t": entry()}, length=4000),
    "a header of half its length": with_header({"t": entry()}, length=20),
    "a huge header": with_header(b" " * (17 << 20)),
    "no JSON": with_header(b"\xff\xfe{}"),
    "a list": with_header([entry()]),
    "deep JSON": with_header(b"[" * 100_000 + b"]" * 100_000),
    "a key twice": with_header(
        b'{"t":%b,"t":%b}' % ((json.dumps(entry()).encode(),) * 2)
    ),
    "a key of an entry twice": with_header(
        b'{"t":{"dtype":"F32","dtype":"I32","shape":[4],"data_offsets":[0,16]}}'
    ),
    "overlap": with_header({"t": entry(), "u": entry((2,), 8, 16)}),
    "a gap": with_header({"t": entry((2,), 0, 8), "u": entry((1,), 12, 16)}),
    "an unused tail": with_header({"t": entry((2,), 0, 8)}),
    "offsets beyond the file": with_header({"t": entry((8,), 0, 32)}),
    "offsets the wrong way": with_header({"t": entry((4,), 16, 0)}),
    "an offset below zero": with_header({"t": entry((4,), -16, 0)}),
    "an offset of 2^70": with_header({"t": entry((4,), 0, 2**70)}),
    "a shape of other size": with_header({"t": entry((5,))}),
    "a dimension below zero": with_header({"t": entry((-2, -2))}),
    "a dimension of 4,000 digits": with_header({"t": entry((10**4000,))}),
    "a hundred thousand dimensions": with_header({"t": entry([1] * 100_000)}),
    "an unknown type": with_header({"t": entry(dtype="F128")}),
    "a type of another type": with_header({"t": entry(dtype=32)}),
    "shape of words": with_header({"t": entry("four")}),
    "three offsets": with_header({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8, 16]}}),
    "no offsets": with_header({"t": {"dtype": "F32", "shape": [4]}}),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_lying_header_is_corrupt_and_costs_little(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(HOSTILE[name])
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpoint, match="not a complete safetensors file"):
            check_safetensors(path)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_empty_and_scalar_tensors_are_sound(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"none": torch.zeros(0, 4), "one": torch.tensor(1.0)}, path)
    check_safetensors(path)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(damage=damages(180))
def test_what_passes_is_what_the_library_reads(
    sound: bytes, tmp_path: Path, damage: Damage
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(damage.to(sound))
    try:
        check_safetensors(path)
    except CorruptCheckpoint:
        return
    with safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            file.get_tensor(name)


@settings(max_examples=30, deadline=None)
@given(
    cuts=st.lists(st.integers(0, 6), max_size=3),
    values=st.lists(
        st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=6, max_size=6
    ),
)
def test_pieces_are_written_as_torch_rounds(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], values: list[float]
) -> None:
    path = tmp_path_factory.mktemp("written") / "model.safetensors"
    whole = np.array(values, np.float32)
    specs = [TensorSpec("a", (2, 3)), TensorSpec("b", (6,))]
    write_bfloat16(path, specs, lambda spec: np.split(whole, sorted(cuts)))

    check_safetensors(path)
    expected = torch.from_numpy(whole).to(torch.bfloat16)
    written = load_file(path)
    assert torch.equal(written["a"], expected.reshape(2, 3))
    assert torch.equal(written["b"], expected)
