"""Lays out codes for the compiled step: panels of 32 output channels, as in
``engine/native/source/quantized.h``."""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

from engine.quantization.weight import GROUP_SIZE, QuantizedWeight, Scheme

PANEL = 32
"""Output channels that lie together; the last panel is filled up with zero channels."""
_BLOCK_INPUTS = 8
"""Inputs whose ``int4`` codes share 16-bit words: 4 pairs, a nibble each."""


class PackedQuantized(NamedTuple):
    """Goes to ``Linear::data`` and ``Linear::scales`` of the compiled step as it is."""

    data: Tensor
    """uint8, flat: all panels, each of `panel_bytes`."""
    scales: Tensor
    """float32: int8: [out_features, padded to whole panels]; int4: [0], since its scales lie in the
    panels."""


def panel_bytes(scheme: Scheme, in_features: int) -> int:
    """Size of one panel."""
    if scheme == "int8":
        return in_features * PANEL
    return in_features * PANEL // 2 + in_features // GROUP_SIZE * PANEL * 2


def pack_quantized(weight: QuantizedWeight) -> PackedQuantized:
    """One panel after the other.

    int8: [in / 2][32 channels][2] codes. int4, per group: [GROUP_SIZE / 8][2 halves][16 channels]
    [2] 16-bit words, in which nibble j holds the code of input pair j of 8 inputs; then the scales
    of the group, [32] in bfloat16.
    """
    if weight.scheme == "int8":
        return _pack_int8(weight)
    return _pack_int4(weight)


def _pack_int8(weight: QuantizedWeight) -> PackedQuantized:
    codes = _pad(weight.codes).view(-1, PANEL, weight.in_features // 2, 2)
    data = codes.transpose(1, 2).contiguous()  # [panels, in / 2, 32, 2]
    return PackedQuantized(data.view(torch.uint8).flatten(), _pad(weight.scales))


def _pack_int4(weight: QuantizedWeight) -> PackedQuantized:
    num_groups = weight.in_features // GROUP_SIZE
    codes = _pad(weight.codes).view(-1, 2, PANEL // 2, num_groups, GROUP_SIZE // 8, 4, 2)
    words = torch.zeros((*codes.shape[:5], 2), dtype=torch.int32)
    for pair in range(_BLOCK_INPUTS // 2):
        words |= codes[..., pair, :].int() << (4 * pair)
    # [panels, groups, blocks of 8 inputs, halves, channels, 2], as bytes
    words = words.permute(0, 3, 4, 1, 2, 5).to(torch.uint16).contiguous()
    code_bytes = words.view(torch.uint8).reshape(words.shape[0], num_groups, -1)
    scales = _pad(weight.scales).to(torch.bfloat16).view(-1, PANEL, num_groups)
    scale_bytes = scales.transpose(1, 2).contiguous().view(torch.uint8)
    data = torch.cat([code_bytes, scale_bytes], dim=2)
    return PackedQuantized(data.flatten(), torch.empty(0))


def _pad(tensor: Tensor) -> Tensor:
    """With zeros, to whole panels."""
    missing = -len(tensor) % PANEL
    return F.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, missing)) if missing else tensor
