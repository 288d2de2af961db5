"""Weight-only quantization: what a linear layer's weight becomes, and what it stands for.

``int8``: one scale per output channel, symmetric, no zero point. ``int6`` and ``int4``: each output
channel is cut into groups of `GROUP_SIZES` inputs with a scale each; a code is an index into one of
`CODEBOOKS`. How codes are chosen is in `rounding`; how they lie in memory for the compiled step, in
`panels`. Must not know of layers or models.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Scheme = Literal["int8", "int6", "int4"]

GROUP_SIZES: Mapping[Scheme, int] = {"int6": 64, "int4": 32}
"""Inputs that share a scale: 6.25 and 4.5 bits per weight with the scale in bfloat16."""


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """A weight [out_features, in_features] as codes, one byte each."""

    scheme: Scheme
    codes: Tensor
    """[out_features, in_features]; int8: -127 to 127; else uint8, from 0 on."""
    scales: Tensor
    """float32; int8: [out_features]; else [out_features, number of groups], each exact in bfloat16,
    and of either sign."""

    def __post_init__(self) -> None:
        groups = () if self.scheme == "int8" else (self.num_groups,)
        assert self.scales.shape == (self.out_features, *groups), "scales do not fit the codes"

    @property
    def out_features(self) -> int:
        return self.codes.shape[0]

    @property
    def in_features(self) -> int:
        return self.codes.shape[1]

    @property
    def num_groups(self) -> int:
        """Of each output channel; not for int8."""
        return self.in_features // GROUP_SIZES[self.scheme]


CODEBOOKS: Mapping[Scheme, Tensor] = {
    # Even steps, without a zero: the two signs of a scale lie half a step apart, so that choosing
    # one shifts what small weights are rounded to.
    "int6": torch.arange(-127.0, 128.0, 4.0),
    # Closer together near zero, where weights are. Fitted by k-means (Lloyd's iteration) to the
    # weights of a small model, each group in units of its largest weight.
    "int4": torch.tensor([-119.0, -87, -66, -50, -35, -21, -9, -2, 7, 15, 28, 43, 59, 75, 98, 127]),
}
"""Values of the codes, ascending, exact in bfloat16; the scale of a group multiplies them."""


def dequantize(weight: QuantizedWeight) -> Tensor:
    """What the codes stand for, float32 [out_features, in_features]."""
    if weight.scheme == "int8":
        return weight.codes.float() * weight.scales.unsqueeze(1)
    values = CODEBOOKS[weight.scheme].take(weight.codes.long())
    groups = values.view(weight.out_features, weight.num_groups, -1)
    return (groups * weight.scales.unsqueeze(2)).flatten(1)
