from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.errors import CheckpointError
from engine.layers.linear import MappedLinear, PackedLinear, can_pack, create_linear
from engine.loader import WeightFiles
from engine.models.shard import TensorPart
from engine.tensor_file import TensorFile


@pytest.fixture
def weights_path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(4)}, path)
    return path


def is_mapped(tensor: Tensor, path: Path) -> bool:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    ranges = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in maps.read_text().splitlines()
        if line.endswith(str(path))
    ]
    return any(begin <= tensor.data_ptr() < end for begin, end in ranges)


WHOLE = torch.arange(6.0).view(2, 3)
PARTS = [None, TensorPart(0, range(1, 2)), TensorPart(1, range(1, 3))]


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize("mapped_as", [None, torch.float32, torch.bfloat16], ids=str)
def test_what_is_used_whole_and_as_it_is_stored_stays_mapped_and_the_rest_is_read(
    weights_path: Path, part: TensorPart | None, mapped_as: torch.dtype | None
) -> None:
    tensor = WeightFiles([weights_path]).take("a", (2, 3), part, mapped_as=mapped_as)
    expected = WHOLE if part is None else WHOLE.narrow(part.dim, part.span.start, len(part.span))
    assert torch.equal(tensor, expected)
    assert tensor.is_contiguous()
    is_whole_and_as_stored = part is None and mapped_as is torch.float32
    assert is_mapped(tensor, weights_path) == is_whole_and_as_stored


def test_parts_of_vectors_and_of_two_byte_types_are_read(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    vector, matrix = torch.arange(9.0), torch.arange(35.0).view(5, 7).bfloat16()
    save_file({"v": vector, "m": matrix}, path)
    files = WeightFiles([path])
    assert torch.equal(files.take("v", (9,), TensorPart(0, range(4, 9))), vector[4:])
    assert torch.equal(files.take("m", (5, 7), TensorPart(1, range(2, 5))), matrix[:, 2:5])
    assert torch.equal(files.take("m", (5, 7), TensorPart(0, range(2, 5))), matrix[2:5])


def test_a_file_that_became_shorter_is_named(weights_path: Path) -> None:
    file = TensorFile(weights_path)
    weights_path.write_bytes(weights_path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match=r"model\.safetensors ended while it was read"):
        file.read("b")


def test_tensors_may_be_spread_over_files(tmp_path: Path, weights_path: Path) -> None:
    second = tmp_path / "second.safetensors"
    save_file({"c": torch.ones(1)}, second)
    files = WeightFiles([weights_path, second])
    assert files.take("c", (1,)).item() == 1
    assert files.take("b", (4,)).sum() == 0


def test_a_missing_tensor_is_named(weights_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no tensor 'model\.norm'"):
        WeightFiles([weights_path]).take("model.norm", (1,))


def test_a_tensor_of_another_shape_is_named(weights_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'a' has shape \(2, 3\).*asks for \(3, 2\)"):
        WeightFiles([weights_path]).take("a", (3, 2))


def test_left_over_tensors_mean_another_architecture(weights_path: Path) -> None:
    files = WeightFiles([weights_path])
    files.take("a", (2, 3))
    with pytest.raises(CheckpointError, match=r"1 tensors .* such as 'b'"):
        files.check_all_taken()
    files.check_all_taken(ignored_suffixes=("b",))
    files.check_all_taken(ignored_prefixes=("b",))


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"\x10\0\0\0\0\0\0\0{}"])
def test_a_file_that_is_no_safetensors_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a complete.*Pull"):
        WeightFiles([path])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_rows", [1, 5, 80])
def test_packed_linear_equals_its_plain_twin(
    dtype: torch.dtype, has_bias: bool, num_rows: int
) -> None:
    if not can_pack(dtype):
        pytest.skip(f"this build of torch packs no {dtype}")
    torch.manual_seed(0)
    weights = [torch.randn(size, 48).to(dtype) for size in (32, 16, 24)]
    biases = [torch.randn(size).to(dtype) for size in (32, 16, 24)] if has_bias else None
    x = torch.randn(num_rows, 48).to(dtype)
    plain, packed = MappedLinear(weights, biases), PackedLinear(weights, biases)
    tolerance = 1e-5 if dtype == torch.float32 else 0.02
    with torch.inference_mode():
        torch.testing.assert_close(packed(x), plain(x), rtol=tolerance, atol=tolerance * 10)


def test_the_layout_picks_the_twin() -> None:
    weights = [torch.zeros(4, 4)]
    assert isinstance(create_linear(weights, layout="mapped"), MappedLinear)
    if can_pack(torch.float32):
        assert isinstance(create_linear(weights, layout="packed"), PackedLinear)
