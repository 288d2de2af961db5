import pytest
import torch

from engine.quantization.panels import PANEL, pack_quantized, panel_bytes
from engine.quantization.rounding import quantize
from engine.quantization.weight import GROUP_SIZE, QuantizedWeight, Scheme

NUM_ROWS, IN_FEATURES = 40, 96
PLACES = [(0, 0), (5, 1), (16, 33), (31, 95), (32, 7), (39, 64)]


def quantized(scheme: Scheme) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(0)
    return quantize(torch.randn(NUM_ROWS, IN_FEATURES, generator=generator), scheme)


@pytest.mark.parametrize(("row", "column"), PLACES)
def test_int8_codes_lie_as_bfloat16_weights_do(row: int, column: int) -> None:
    weight = quantized("int8")
    data, scales = pack_quantized(weight)
    panels = data.view(torch.int8).view(-1, IN_FEATURES // 2, PANEL, 2)
    assert panels[row // PANEL, column // 2, row % PANEL, column % 2] == weight.codes[row, column]
    assert scales[row] == weight.scales[row]


@pytest.mark.parametrize(("row", "column"), PLACES)
def test_an_int4_code_is_a_nibble_of_its_block_of_inputs(row: int, column: int) -> None:
    weight = quantized("int4")
    groups = pack_quantized(weight).data.view(-1, IN_FEATURES // GROUP_SIZE, 512 + 64)
    group = groups[row // PANEL, column // GROUP_SIZE]
    words = group[:512].view(torch.int16).view(GROUP_SIZE // 8, 2, 16, 2)
    block, place = divmod(column % GROUP_SIZE, 8)
    word = int(words[block, row % PANEL // 16, row % 16, place % 2]) & 0xFFFF
    assert word >> (4 * (place // 2)) & 15 == weight.codes[row, column]
    scales = group[512:].clone().view(torch.bfloat16)
    assert scales[row % PANEL] == weight.scales[row, column // GROUP_SIZE]


@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_the_last_panel_is_filled_up_with_zero_channels(scheme: Scheme) -> None:
    data, scales = pack_quantized(quantized(scheme))
    assert data.numel() == 2 * panel_bytes(scheme, IN_FEATURES)
    if scheme == "int8":
        assert scales.shape == (2 * PANEL,)
        assert not scales[NUM_ROWS:].any()
    else:
        last = data.view(2, IN_FEATURES // GROUP_SIZE, 512 + 64)[1, :, 512:].clone()
        assert not last.view(torch.bfloat16)[:, NUM_ROWS - PANEL :].any()
        assert scales.numel() == 0


def test_four_bits_take_four_and_a_half() -> None:
    assert panel_bytes("int4", 576) * 8 == 4.5 * PANEL * 576
