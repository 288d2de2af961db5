"""Panels hold every weight where the compiled step looks for it, and zeros elsewhere."""

import pytest
import torch
from torch import Tensor

from engine.native.packing import PanelShape, pack_bias, pack_panels
from engine.quantization.panels import PANEL


def columns(panels: Tensor) -> Tensor:
    """[num_panels * PANEL, in_features] Weights in the order of panels."""
    return panels.permute(0, 2, 1, 3).reshape(len(panels) * PANEL, -1)


def random_weights(*num_rows: int, in_features: int = 6) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, in_features, generator=generator).bfloat16() for rows in num_rows]


@pytest.mark.parametrize("num_rows", [(5,), (32,), (97,), (64, 20, 20), (1, 31, 33), (40, 100, 3)])
def test_tensors_follow_each_other_and_the_last_panel_is_filled_up(
    num_rows: tuple[int, ...],
) -> None:
    weights = random_weights(*num_rows)
    shape = PanelShape(6, num_rows)
    panels = pack_panels(shape, weights)
    assert panels.shape == (shape.num_panels, 3, PANEL, 2)
    assert panels.nbytes == shape.num_bytes
    assert shape.out_features == sum(num_rows)
    packed = columns(panels)
    assert torch.equal(packed[: sum(num_rows)], torch.cat(weights))
    assert not packed[sum(num_rows) :].any()


@pytest.mark.parametrize("num_rows", [32, 40, 5, 96])
def test_gate_and_up_take_turns_each_filled_up_by_itself(num_rows: int) -> None:
    gate, up = random_weights(num_rows, num_rows)
    shape = PanelShape(6, (num_rows, num_rows), is_interleaved=True)
    packed = columns(pack_panels(shape, [gate, up])).view(-1, 2, PANEL, 6)
    assert shape.out_features == shape.num_panels * PANEL == packed.numel() // 6
    for side, weight in enumerate((gate, up)):
        own = packed[:, side].reshape(-1, 6)
        assert torch.equal(own[:num_rows], weight)
        assert not own[num_rows:].any()


def test_a_bias_lies_where_its_column_does() -> None:
    biases = [torch.arange(40.0) + 1, torch.arange(40.0) + 101]
    beside = pack_bias(PanelShape(6, (40, 40)), biases)
    assert torch.equal(beside, torch.cat([*biases, torch.zeros(16)]))
    turns = pack_bias(PanelShape(6, (40, 40), is_interleaved=True), biases).view(2, 2, PANEL)
    for side, bias in enumerate(biases):
        own = turns[:, side].flatten()
        assert torch.equal(own, torch.cat([bias, torch.zeros(24)]))


def test_weights_are_taken_one_at_a_time() -> None:
    taken: list[int] = []

    def weights() -> object:
        for index, weight in enumerate(random_weights(33, 33)):
            taken.append(index)
            yield weight

    pack_panels(PanelShape(6, (33, 33)), weights())  # type: ignore[arg-type]
    assert taken == [0, 1]
