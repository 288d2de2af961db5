"""Weight-only quantization: what a linear layer's weight becomes, and what it stands for.

``int8``: one scale per output channel, symmetric, no zero point. ``int4``: each output channel is
cut into groups of `GROUP_SIZE` inputs with a scale each; a code is an index into `CODEBOOK`, whose
16 values lie closer together near zero, where weights are. How codes are chosen is in `rounding`;
how they lie in memory for the compiled step, in `panels`. Must not know of layers or models.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Scheme = Literal["int8", "int4"]

GROUP_SIZE = 32
"""Inputs that share a scale in ``int4``: 4.5 bits per weight with the scale in bfloat16."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [out_features, in_features] as codes, one byte each."""

    scheme: Scheme
    codes: Tensor
    """[out_features, in_features]; int8: -127 to 127; int4: uint8, 0 to 15."""
    scales: Tensor
    """float32; int8: [out_features]; int4: [out_features, in_features / GROUP_SIZE], each exact in
    bfloat16, and of either sign."""

    def __post_init__(self) -> None:
        groups = (self.in_features // GROUP_SIZE,) if self.scheme == "int4" else ()
        assert self.scales.shape == (self.out_features, *groups), "scales do not fit the codes"

    @property
    def out_features(self) -> int:
        return self.codes.shape[0]

    @property
    def in_features(self) -> int:
        return self.codes.shape[1]


CODEBOOK = torch.tensor(
    # Fitted by k-means (Lloyd's iteration) to the weights of a small model, each group in units of
    # its largest weight; exact in bfloat16.
    [-119.0, -87, -66, -50, -35, -21, -9, -2, 7, 15, 28, 43, 59, 75, 98, 127]
)
"""Values of the 16 ``int4`` codes, ascending; the scale of a group multiplies them."""


def dequantize(weight: QuantizedWeight) -> Tensor:
    """What the codes stand for, float32 [out_features, in_features]."""
    if weight.scheme == "int8":
        return weight.codes.float() * weight.scales.unsqueeze(1)
    values = CODEBOOK.take(weight.codes.long())
    groups = values.view(weight.out_features, -1, GROUP_SIZE)
    return (groups * weight.scales.unsqueeze(2)).flatten(1)
