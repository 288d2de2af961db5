"""Reading tensors: every quantization, in pieces, and out of several files."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray

from engine.checkpoints.errors import CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_file import GgufFile, shard_paths

COMMON = (
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "IQ4_NL",
    "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4",
)  # fmt: skip


def finite_blocks(kind: GGMLQuantizationType, shape: tuple[int, int]) -> NDArray[np.uint8]:
    """Random packed rows that dequantize to finite numbers: bytes below 0x40 are no exponent of
    infinity wherever they stand.
    """
    block_values, block_bytes = GGML_QUANT_SIZES[kind]
    random = np.random.default_rng(5)
    row_bytes = shape[1] // block_values * block_bytes
    return random.integers(0, 0x40, (shape[0], row_bytes), dtype=np.uint8)


def write(path: Path, tensors: dict[str, tuple[NDArray[np.uint8], GGMLQuantizationType]]) -> Path:
    writer = GGUFWriter(path, "llama")
    for name, (packed, kind) in tensors.items():
        writer.add_tensor(name, packed, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", COMMON)
def test_values_are_those_of_the_gguf_package_whatever_the_pieces(
    tmp_path: Path, name: str
) -> None:
    kind = GGMLQuantizationType[name]
    packed = finite_blocks(kind, (301, 256))  # 301 rows are more than one chunk
    file = GgufFile.open(write(tmp_path / "file.gguf", {"t": (packed, kind)}))

    expected = gguf.dequantize(packed, kind)
    np.testing.assert_array_equal(file.read(file.tensors["t"]), expected)
    chunks = list(file.read_rows(file.tensors["t"], multiple_of=7))
    assert len(chunks) > 1
    assert all(len(chunk) % 7 == 0 for chunk in chunks[:-1])
    np.testing.assert_array_equal(np.concatenate(chunks), expected)


def test_a_row_wider_than_a_piece_is_read_whole(tmp_path: Path) -> None:
    kind = GGMLQuantizationType.Q6_K
    packed = finite_blocks(kind, (2, 1 << 17))
    file = GgufFile.open(write(tmp_path / "file.gguf", {"t": (packed, kind)}))
    np.testing.assert_array_equal(file.read(file.tensors["t"]), gguf.dequantize(packed, kind))


@pytest.mark.parametrize("name", ["I8", "F64", "Q8_1", "Q8_K"])
def test_a_type_that_cannot_be_dequantized_is_refused_by_name(tmp_path: Path, name: str) -> None:
    kind = GGMLQuantizationType[name]
    packed = finite_blocks(kind, (1, 256))
    file = GgufFile.open(write(tmp_path / "file.gguf", {"t": (packed, kind)}))
    with pytest.raises(UnsupportedCheckpoint, match=f"stored as {name}, which"):
        file.read(file.tensors["t"])


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    """As llama.cpp's gguf-split writes them."""
    writer = GGUFWriter(tmp_path / "model.gguf", "llama", split_max_tensors=2)
    writer.add_block_count(3)
    for number in range(5):
        writer.add_tensor(f"t{number}", np.full(4, number, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(tmp_path.glob("*.gguf"))


def test_any_shard_stands_for_all(shards: list[Path]) -> None:
    assert shards[0].name == "model-00001-of-00003.gguf"
    for path in shards:
        assert shard_paths(path) == shards
        file = GgufFile.open(path)
        assert file.metadata["llama.block_count"] == 3
        for number in range(5):
            assert file.read(file.tensors[f"t{number}"]).tolist() == [number] * 4


def test_a_missing_shard_is_named(shards: list[Path]) -> None:
    shards[1].unlink()
    with pytest.raises(CorruptCheckpoint, match=r"missing beside it: model-00002-of-00003\.gguf"):
        GgufFile.open(shards[0])


def test_shards_in_each_others_place_are_corrupt(shards: list[Path]) -> None:
    content = shards[1].read_bytes()
    shards[1].write_bytes(shards[2].read_bytes())
    shards[2].write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=r"number 2 \(from 0\) of 3"):
        GgufFile.open(shards[0])


def test_a_renamed_shard_is_not_taken_for_a_model(shards: list[Path]) -> None:
    path = shards[0].rename(shards[0].with_name("model.gguf"))
    with pytest.raises(CorruptCheckpoint, match="of 3 shards"):
        GgufFile.open(path)


def test_a_name_of_no_possible_shard_is_corrupt(tmp_path: Path) -> None:
    for name in ("m-00004-of-00003.gguf", "m-00000-of-00001.gguf", "m-00001-of-99999.gguf"):
        with pytest.raises(CorruptCheckpoint, match="name"):
            shard_paths(tmp_path / name)
