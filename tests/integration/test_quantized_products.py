"""The compiled step multiplies with quantized weights as plain torch does with what they stand
for, and gives a row the same result whatever stands beside it."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from engine.checkpoints.store import open_checkpoint
from engine.errors import CheckpointError
from engine.native.library import Linear, StepLibrary, WeightFormat
from engine.quantization.layers import Quantization
from engine.quantization.panels import pack_quantized
from engine.quantization.rounding import quantize, suits
from engine.quantization.weight import Scheme, dequantize
from tests.integration.model_steps import (
    compiled_library,
    logits_of,
    native_steps,
    torch_steps,
)
from tests.unit.engine.paged_model import Chunk
from tests.unit.engine.tiny_models import VOCAB_SIZE, make_tiny_model, write_checkpoint

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

FORMATS: dict[Scheme, WeightFormat] = {
    "int8": WeightFormat.INT8,
    "int6": WeightFormat.INT6,
    "int4": WeightFormat.INT4,
}
SIZES = [(32, 1), (64, 40), (576, 96), (1536, 65)]
"""(in_features, out_features)"""
PRODUCTS = [(scheme, *size) for scheme in FORMATS for size in SIZES if suits(scheme, size[0])]


@pytest.fixture(scope="module")
def calls() -> StepLibrary:
    return compiled_library()


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def random_tokens() -> Tensor:
    return torch.randint(3, VOCAB_SIZE, (2, 70), generator=torch.Generator().manual_seed(3))


def multiply(calls: StepLibrary, weight: Tensor, scheme: Scheme, rows: Tensor) -> Tensor:
    """By way of the output layer, which is one product."""
    data, scales = pack_quantized(quantize(weight, scheme))
    out_features, in_features = weight.shape
    fields = Linear(
        data=data.data_ptr(),
        scales=scales.data_ptr(),
        format=FORMATS[scheme],
        in_features=in_features,
        out_features=out_features,
    )
    calls.use_threads(1)
    scratch = torch.empty(calls.logits_scratch_bytes(fields, len(rows)), dtype=torch.uint8)
    product = torch.empty(len(rows), out_features)
    calls.compute_logits(fields, rows.data_ptr(), len(rows), product.data_ptr(), scratch.data_ptr())
    return product


@pytest.mark.parametrize("num_rows", [1, 2, 5, 12, 13, 40, 97])
@pytest.mark.parametrize(("scheme", "in_features", "out_features"), PRODUCTS)
def test_products_are_those_of_the_dequantized_weight(
    calls: StepLibrary, scheme: Scheme, in_features: int, out_features: int, num_rows: int
) -> None:
    weight = random(out_features, in_features, seed=0)
    rows = random(num_rows, in_features, seed=1).bfloat16().float()
    expected = rows.double() @ dequantize(quantize(weight, scheme)).double().T
    actual = multiply(calls, weight, scheme, rows)
    assert (actual - expected).norm() < 1e-6 * expected.norm()


@pytest.mark.parametrize("scheme", FORMATS)
def test_a_row_does_not_depend_on_its_neighbours(calls: StepLibrary, scheme: Scheme) -> None:
    weight, rows = random(96, 576, seed=0), random(97, 576, seed=1)
    together = multiply(calls, weight, scheme, rows)
    for row in (0, 50, 96):
        alone = multiply(calls, weight, scheme, rows[row : row + 1].contiguous())
        assert torch.equal(alone[0], together[row])


def test_an_odd_number_of_input_pairs_is_multiplied_whole(calls: StepLibrary) -> None:
    weight, rows = random(33, 70, seed=0), random(3, 70, seed=1).bfloat16().float()
    expected = rows @ dequantize(quantize(weight, "int8")).T
    assert (multiply(calls, weight, "int8", rows) - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_a_quantized_model_computes_what_its_twin_in_torch_does(
    tmp_path: Path, calls: StepLibrary, family: str, scheme: Quantization
) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16, "num_attention_heads": 4}
    reference = make_tiny_model(family, initializer_range=0.15, **sizes)
    path = write_checkpoint(reference.to(torch.bfloat16), tmp_path / "checkpoint")
    checkpoint = open_checkpoint(path)
    tokens = random_tokens()
    chunks = [Chunk(0, 0, 70), Chunk(1, 0, 13)]
    exact = logits_of(torch_steps(checkpoint, torch.float32, tokens, scheme), *chunks)
    twin = logits_of(torch_steps(checkpoint, torch.bfloat16, tokens, scheme), *chunks)
    own = logits_of(native_steps(checkpoint, calls, tokens, scheme), *chunks)
    assert (own - exact).norm() < 1.3 * (twin - exact).norm()
    # And it isn't the model before.
    plain = logits_of(torch_steps(checkpoint, torch.float32, tokens), *chunks)
    assert (plain - exact).norm() > 0.01 * exact.norm()


def test_a_weight_that_is_no_number_fails_the_load_and_leaves_no_file(
    tmp_path: Path, calls: StepLibrary
) -> None:
    reference = make_tiny_model("llama", hidden_size=64, intermediate_size=96)
    with torch.no_grad():
        reference.model.layers[0].mlp.down_proj.weight[1, 2] = torch.nan
    path = write_checkpoint(reference.to(torch.bfloat16), tmp_path / "checkpoint")
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        native_steps(open_checkpoint(path), calls, random_tokens(), "int8")
    assert not list(path.glob("packed-*"))
