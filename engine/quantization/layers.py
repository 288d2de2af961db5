"""Which linear layers of a model are rounded to what, and how they look to plain torch."""

from typing import Literal

from torch import Tensor

from engine.quantization.rounding import quantize, suits
from engine.quantization.weight import Scheme, dequantize

Quantization = Literal["none", "int8", "int4"]
"""Of a whole model. Embedding and norms stay as they are."""


def head_scheme(quantization: Quantization, in_features: int) -> Scheme | None:
    """Of the layer that gives logits: its errors reach every token's probability unchecked, so it
    never has 4 bits."""
    return _scheme(quantization, in_features, has_four_bits=False)


INT4_KINDS = ("gate_up",)
"""Half of a decoder layer's weights. With all of them in 4 bits SmolLM2-135M lost 18 % in
perplexity, with these 3 %, and with the rest and the head in 6 bits another 0.6; larger models lose
less."""


def layer_scheme(quantization: Quantization, kind: str, in_features: int) -> Scheme | None:
    """Of a kind of linear layer of decoder layers, as `engine.models.loading` names them."""
    return _scheme(quantization, in_features, has_four_bits=kind in INT4_KINDS)


def _scheme(quantization: Quantization, in_features: int, *, has_four_bits: bool) -> Scheme | None:
    if quantization == "none":
        return None
    if quantization == "int8":
        return "int8"
    if has_four_bits:
        return "int4"
    return "int6" if suits("int6", in_features) else "int8"


def rounded(weight: Tensor, scheme: Scheme | None, importance: Tensor | None = None) -> Tensor:
    """The values that quantized ``weight`` stands for, in its own dtype and as large: what torch
    computes where there is no compiled step. Raises as `engine.quantization.rounding.quantize`."""
    if scheme is None:
        return weight
    return dequantize(quantize(weight, scheme, importance)).to(weight.dtype)
