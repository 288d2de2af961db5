"""Which linear layers of a model are rounded to what, and how they look to plain torch."""

from typing import Literal

from torch import Tensor

from engine.quantization.rounding import quantize
from engine.quantization.weight import Scheme, dequantize

Quantization = Literal["none", "int8", "int4"]
"""Of a whole model. Embedding and norms stay as they are."""


def head_scheme(quantization: Quantization) -> Scheme | None:
    """Of the layer that gives logits: its errors reach every token's probability unchecked, so it
    stays at 8 bits."""
    return None if quantization == "none" else "int8"


def layer_scheme(quantization: Quantization) -> Scheme | None:
    """Of the linear layers of decoder layers."""
    return None if quantization == "none" else quantization


def rounded(weight: Tensor, scheme: Scheme | None) -> Tensor:
    """The values that quantized ``weight`` stands for, in its own dtype and as large: what torch
    computes where there is no compiled step. Raises as `engine.quantization.rounding.quantize`."""
    if scheme is None:
        return weight
    return dequantize(quantize(weight, scheme)).to(weight.dtype)
