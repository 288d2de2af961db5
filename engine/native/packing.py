"""Weights as the compiled step reads them: panels of 32 outputs, inputs in pairs.

A panel is ``[in_features / 2][32][2]`` in bfloat16; outputs that fill up the last one are zeros.
Must not know where weights come from or where they are kept.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.quantization.panels import PANEL, panel_bytes
from engine.quantization.weight import Scheme


def num_panels(num_rows: int) -> int:
    """Panels that hold so many outputs."""
    return -(-num_rows // PANEL)


@dataclass(frozen=True, slots=True)
class PanelShape:
    """The panels of one linear layer, made of one or several tensors with the same input."""

    in_features: int
    num_rows: tuple[int, ...]
    """Outputs of each tensor."""
    is_interleaved: bool = False
    """A panel of each tensor in turn, each filled up by itself, where else one tensor's rows follow
    the other's."""
    scheme: Scheme | None = None
    """How the weights are quantized; None: bfloat16."""

    @property
    def num_panels(self) -> int:
        if self.is_interleaved:
            return sum(map(num_panels, self.num_rows))
        return num_panels(sum(self.num_rows))

    @property
    def out_features(self) -> int:
        """What the compiled step is told: with interleaved panels those that fill up, too."""
        return self.num_panels * PANEL if self.is_interleaved else sum(self.num_rows)

    @property
    def num_bytes(self) -> int:
        if self.scheme is not None:
            return self.num_panels * panel_bytes(self.scheme, self.in_features)
        return self.num_panels * PANEL * self.in_features * 2

    @property
    def num_scales(self) -> int:
        """Of outputs; those of groups lie in the panels."""
        return self.num_panels * PANEL if self.scheme == "int8" else 0


def pack_panels(shape: PanelShape, weights: Iterable[Tensor]) -> Tensor:
    """[num_panels, in_features / 2, PANEL, 2] of bfloat16 ``weights`` [num_rows, in_features]."""
    panels = torch.zeros((shape.num_panels, shape.in_features // 2, PANEL, 2), dtype=torch.bfloat16)
    # A pair of inputs moves as one number.
    pairs = panels.view(torch.int32).squeeze(-1)
    step = len(shape.num_rows) if shape.is_interleaved else 1
    first_row = 0
    for index, weight in enumerate(weights):
        own = pairs[index::step] if shape.is_interleaved else pairs
        place_rows(own, first_row, weight.contiguous().view(torch.int32))
        if not shape.is_interleaved:
            first_row += len(weight)
    return panels


def place_rows(panels: Tensor, first_row: int, rows: Tensor) -> None:
    """Write ``rows`` [num_rows, width] to ``panels`` [num_panels, width, PANEL], from one output
    on."""
    begin = 0
    while begin < len(rows):
        panel, offset = divmod(first_row + begin, PANEL)
        num_whole = (len(rows) - begin) // PANEL if offset == 0 else 0
        if num_whole:
            whole = rows[begin : begin + num_whole * PANEL].view(num_whole, PANEL, -1)
            panels[panel : panel + num_whole] = whole.transpose(1, 2)
            begin += num_whole * PANEL
            continue
        end = min(begin + PANEL - offset, len(rows))
        panels[panel, :, offset : offset + end - begin] = rows[begin:end].T
        begin = end


def pack_bias(shape: PanelShape, biases: Iterable[Tensor]) -> Tensor:
    """[num_panels * PANEL] in float32, each output's where its column is."""
    packed = torch.zeros(shape.num_panels, PANEL)
    step = len(shape.num_rows) if shape.is_interleaved else 1
    first_row = 0
    for index, bias in enumerate(biases):
        own = packed[index::step] if shape.is_interleaved else packed
        place_rows(own.unsqueeze(1), first_row, bias.float().unsqueeze(1))
        if not shape.is_interleaved:
            first_row += len(bias)
    return packed.flatten()
