import pytest
import torch

from engine.quantization.panels import PANEL, pack_quantized, panel_bytes
from engine.quantization.rounding import quantize
from engine.quantization.weight import GROUP_SIZES, QuantizedWeight, Scheme

NUM_ROWS, IN_FEATURES = 40, 128
PLACES = [(0, 0), (5, 1), (16, 33), (31, 127), (32, 7), (39, 64)]


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
    groups = pack_quantized(weight).data.view(-1, IN_FEATURES // 32, 512 + 64)
    group = groups[row // PANEL, column // 32]
    words = group[:512].view(torch.int16).view(4, 2, 16, 2)
    block, place = divmod(column % 32, 8)
    word = int(words[block, row % PANEL // 16, row % 16, place % 2]) & 0xFFFF
    assert word >> (4 * (place // 2)) & 15 == weight.codes[row, column]
    scales = group[512:].clone().view(torch.bfloat16)
    assert scales[row % PANEL] == weight.scales[row, column // 32]


@pytest.mark.parametrize("pair", range(8))
@pytest.mark.parametrize(("row", "block"), [(0, 0), (16, 3), (31, 7), (32, 5), (39, 4)])
def test_an_int6_code_is_six_bits_of_its_block_of_inputs(row: int, block: int, pair: int) -> None:
    weight = quantized("int6")
    groups = pack_quantized(weight).data.view(-1, IN_FEATURES // 64, 4 * 384 + 64)
    group = groups[row // PANEL, block // 4]
    words = group[: 4 * 384].view(torch.int16).view(4, 3, 2, 16, 2)
    for side in range(2):
        block_words = words[block % 4, :, row % PANEL // 16, row % 16, side].int() & 0xFFFF
        first, second, third = block_words.tolist()
        code = {
            6: first >> 12 | (third >> 12 & 3) << 4,
            7: second >> 12 | third >> 14 << 4,
        }.get(pair, (first, second, third, 0)[pair // 2] >> 6 * (pair % 2) & 63)
        assert code == weight.codes[row, 16 * block + 2 * pair + side]
    scales = group[4 * 384 :].clone().view(torch.bfloat16)
    assert scales[row % PANEL] == weight.scales[row, block // 4]


@pytest.mark.parametrize("scheme", ["int8", "int6", "int4"])
def test_the_last_panel_is_filled_up_with_zero_channels(scheme: Scheme) -> None:
    data, scales = pack_quantized(quantized(scheme))
    assert data.numel() == 2 * panel_bytes(scheme, IN_FEATURES)
    if scheme == "int8":
        assert scales.shape == (2 * PANEL,)
        assert not scales[NUM_ROWS:].any()
    else:
        num_groups = IN_FEATURES // GROUP_SIZES[scheme]
        last = data.view(2, num_groups, -1)[1, :, -2 * PANEL :].clone()
        assert not last.view(torch.bfloat16)[:, NUM_ROWS - PANEL :].any()
        assert scales.numel() == 0


@pytest.mark.parametrize(("scheme", "num_bits"), [("int8", 8), ("int6", 6.25), ("int4", 4.5)])
def test_a_weight_takes_its_bits_and_a_part_of_a_scale(scheme: Scheme, num_bits: float) -> None:
    assert panel_bytes(scheme, 576) * 8 == num_bits * PANEL * 576
