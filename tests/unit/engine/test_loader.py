from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.errors import CheckpointError
from engine.layers.linear import MappedLinear, PackedLinear, can_pack, create_linear
from engine.loader import WeightFiles


@pytest.fixture
def weights_path(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(4)}, path)
    return path


def test_tensors_are_views_of_the_mapped_file(weights_path: Path) -> None:
    tensor = WeightFiles([weights_path]).take("a", (2, 3))
    assert tensor.tolist() == [[0, 1, 2], [3, 4, 5]]
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("needs /proc")
    ranges = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in maps.read_text().splitlines()
        if line.endswith(str(weights_path))
    ]
    assert any(begin <= tensor.data_ptr() < end for begin, end in ranges)


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
    with pytest.raises(CheckpointError, match=r"cannot read .*model\.safetensors.*pull the model"):
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
