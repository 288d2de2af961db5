"""Fills the panels of one linear layer with quantized weights."""

from collections.abc import Iterable

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

from engine.native.packing import PanelShape, num_panels
from engine.quantization.panels import PANEL, PackedQuantized, pack_quantized
from engine.quantization.rounding import quantize
from engine.quantization.weight import Scheme


def pack_quantized_panels(
    shape: PanelShape,
    weights: Iterable[Tensor],
    scheme: Scheme,
    importance: Tensor | None = None,
) -> PackedQuantized:
    """Of ``weights`` [num_rows, in_features], whose outputs take the places that
    `engine.native.packing.pack_panels` gives them. The rest as in
    `engine.quantization.rounding.quantize`."""
    panels = torch.zeros((shape.num_panels, PANEL, shape.in_features), dtype=torch.bfloat16)
    rows = panels.flatten(0, 1)
    step = len(shape.num_rows)
    first_row = 0
    for index, weight in enumerate(weights):
        if shape.is_interleaved:
            padded = F.pad(weight, (0, 0, 0, num_panels(len(weight)) * PANEL - len(weight)))
            panels[index::step] = padded.unflatten(0, (-1, PANEL))
        else:
            rows[first_row : first_row + len(weight)] = weight
            first_row += len(weight)
    return pack_quantized(quantize(rows, scheme, importance))
