import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.errors import CheckpointError, EngineConfigError
from engine.quantization.rounding import quantize, suits
from engine.quantization.weight import CODEBOOKS, GROUP_SIZES, Scheme, dequantize

SCHEMES: tuple[Scheme, ...] = ("int8", "int6", "int4")


@st.composite
def weights(draw: st.DrawFn) -> Tensor:
    """Of all magnitudes, with outliers and zero channels."""
    num_rows = draw(st.integers(1, 70))
    shape = (num_rows, 64 * draw(st.integers(1, 4)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    weight = torch.randn(shape, generator=generator) * 10.0 ** draw(st.integers(-6, 3))
    outliers = torch.rand(shape, generator=generator) < draw(st.sampled_from([0.0, 0.02]))
    weight[outliers] *= 30
    weight[torch.rand(num_rows, generator=generator) < 0.1] = 0.0
    return weight.to(draw(st.sampled_from([torch.float32, torch.bfloat16])))


@settings(max_examples=30, deadline=None)
@given(weights())
def test_int8_is_off_by_half_a_step_of_its_channel_at_most(weight: Tensor) -> None:
    quantized = quantize(weight, "int8")
    step = weight.float().abs().amax(dim=1, keepdim=True) / 127
    assert quantized.codes.dtype == torch.int8
    assert quantized.codes.abs().max() <= 127
    assert ((dequantize(quantized) - weight.float()).abs() <= step * 0.5001).all()


@settings(max_examples=30, deadline=None)
@given(weights(), st.sampled_from(["int6", "int4"]))
def test_groups_are_off_by_half_the_widest_gap_at_most(weight: Tensor, scheme: Scheme) -> None:
    quantized = quantize(weight, scheme)
    codebook = CODEBOOKS[scheme]
    groups = weight.float().unflatten(1, (-1, GROUP_SIZES[scheme]))
    error = (dequantize(quantized).view_as(groups) - groups).norm(dim=2)
    # The best scale is no worse than the one by which the largest weight is the last code.
    unit = groups.abs().amax(dim=2) / codebook[-1]
    most = float(codebook.diff().max()) / 2 + 0.5  # scales are rounded to bfloat16
    assert (error <= unit * most * GROUP_SIZES[scheme] ** 0.5).all()
    assert quantized.codes.max() < len(codebook)
    assert torch.equal(quantized.scales, quantized.scales.bfloat16().float())


@pytest.mark.parametrize("scheme", SCHEMES)
def test_zero_weights_stay_zero(scheme: Scheme) -> None:
    assert torch.equal(dequantize(quantize(torch.zeros(3, 64), scheme)), torch.zeros(3, 64))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_channel_is_rounded_alike_alone_and_among_others(scheme: Scheme) -> None:
    weight = torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    whole, alone = dequantize(quantize(weight, scheme)), dequantize(quantize(weight[7:9], scheme))
    assert torch.equal(whole[7:9], alone)


def test_typical_weights_are_off_by_less_than_with_even_steps() -> None:
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    error = dequantize(quantize(weight, "int4")) - weight
    groups = weight.unflatten(1, (-1, GROUP_SIZES["int4"]))
    step = groups.abs().amax(dim=2, keepdim=True) / 8
    even = (groups / step).round().clamp(-7, 7) * step
    assert error.norm() < 0.9 * (even - groups).norm()


@pytest.mark.parametrize("scheme", ["int6", "int4"])
def test_the_inputs_that_count_are_spared(scheme: Scheme) -> None:
    weight = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    importance = torch.where(torch.arange(1024) % 16 == 0, 100.0, 1.0)
    alike, weighed = (
        (dequantize(quantize(weight, scheme, weights)) - weight).square().mul(importance).sum()
        for weights in (None, importance)
    )
    assert weighed < 0.8 * alike


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_what_is_no_number_is_refused(scheme: Scheme, value: float) -> None:
    weight = torch.zeros(5, 64)
    weight[4, 63] = value
    with pytest.raises(CheckpointError, match="NaN or infinite values"):
        quantize(weight, scheme)


@pytest.mark.parametrize(("scheme", "in_features"), [("int8", 63), ("int6", 96), ("int4", 48)])
def test_an_input_size_that_does_not_suit_is_refused(scheme: Scheme, in_features: int) -> None:
    assert not suits(scheme, in_features)
    with pytest.raises(EngineConfigError, match=f"a layer has {in_features}") as raised:
        quantize(torch.zeros(4, in_features), scheme)
    assert ("or 'int8'" in str(raised.value)) == (scheme != "int8")


@pytest.mark.parametrize("scheme", ["int6", "int4"])
@pytest.mark.parametrize("size", [1e25, 1e37])
def test_weights_whose_squares_are_too_large_are_rounded_as_others_are(
    scheme: Scheme, size: float
) -> None:
    weight = torch.randn(5, 128, generator=torch.Generator().manual_seed(0)) * size
    off = (dequantize(quantize(weight, scheme)).double() - weight.double()).norm()
    assert off < 0.12 * weight.double().norm()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_importance_that_is_not_finite_counts_for_nothing(scheme: Scheme, value: float) -> None:
    weight = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    importance = torch.ones(64)
    importance[3] = value
    actual, expected = quantize(weight, scheme, importance), quantize(weight, scheme)
    assert torch.equal(actual.codes, expected.codes)
    assert torch.equal(actual.scales, expected.scales)
