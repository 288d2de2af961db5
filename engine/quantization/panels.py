"""Lays out codes for the compiled step: panels of 32 output channels, as in
``engine/native/source/quantized.h``."""

from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

from engine.quantization.weight import GROUP_SIZES, QuantizedWeight, Scheme

PANEL = 32
"""Output channels that lie together; the last panel is filled up with zero channels."""
_INT4_BLOCK = 8
"""Inputs whose codes share 16-bit words: 4 pairs, a nibble each."""
_INT6_BLOCK = 16
"""Inputs whose codes share triples of 16-bit words: 8 pairs."""


class PackedQuantized(NamedTuple):
    """Goes to ``Linear::data`` and ``Linear::scales`` of the compiled step as it is."""

    data: Tensor
    """uint8, flat: all panels, each of `panel_bytes`."""
    scales: Tensor
    """float32: int8: [out_features, padded to whole panels]; else [0]: scales of groups lie in the
    panels."""


def panel_bytes(scheme: Scheme, in_features: int) -> int:
    """Size of one panel."""
    if scheme == "int8":
        return in_features * PANEL
    num_bits = 6 if scheme == "int6" else 4
    return PANEL * (in_features * num_bits // 8 + in_features // GROUP_SIZES[scheme] * 2)


def pack_quantized(weight: QuantizedWeight) -> PackedQuantized:
    """One panel after the other.

    int8: [in / 2][32 channels][2] codes. Else a group after the other: its blocks of 16-bit words,
    then its scales, [32] in bfloat16.

    int4: a block is [2 halves][16 channels][2] words, in which nibble j holds the code of input
    pair j of 8 inputs. int6: [3][2 halves][16 channels][2] words. Of 8 input pairs, word i holds
    the codes of 2 i and 2 i + 1 in bits 0-5 and 6-11; bits 12-15 of words 0 and 1 hold the lower
    four of pairs 6 and 7, whose upper two are bits 12-13 and 14-15 of word 2.
    """
    match weight.scheme:
        case "int8":
            return _pack_int8(weight)
        case "int6":
            words = _int6_words(_blocks(weight, _INT6_BLOCK))
        case "int4":
            words = _int4_words(_blocks(weight, _INT4_BLOCK))
    return _pack_groups(weight, words)


def _pack_int8(weight: QuantizedWeight) -> PackedQuantized:
    codes = _pad(weight.codes).view(-1, PANEL, weight.in_features // 2, 2)
    data = codes.transpose(1, 2).contiguous()  # [panels, in / 2, 32, 2]
    return PackedQuantized(data.view(torch.uint8).flatten(), _pad(weight.scales))


def _blocks(weight: QuantizedWeight, block_inputs: int) -> Tensor:
    """int32 [panels, 2 halves, 16 channels, groups, blocks, pairs, 2] of codes."""
    num_blocks = GROUP_SIZES[weight.scheme] // block_inputs
    shape = (-1, 2, PANEL // 2, weight.num_groups, num_blocks, block_inputs // 2, 2)
    return _pad(weight.codes).int().view(shape)


def _int4_words(blocks: Tensor) -> Tensor:
    """[panels, 2, 16, groups, blocks, 1, 2]"""
    words = torch.zeros_like(blocks[..., :1, :])
    for pair in range(_INT4_BLOCK // 2):
        words |= blocks[..., pair : pair + 1, :] << (4 * pair)
    return words


def _int6_words(blocks: Tensor) -> Tensor:
    """[panels, 2, 16, groups, blocks, 3, 2]"""
    words = blocks[..., 0:6:2, :] | blocks[..., 1:6:2, :] << 6
    split = blocks[..., 6:8, :]
    words[..., :2, :] |= (split & 15) << 12
    words[..., 2, :] |= (split[..., 0, :] >> 4) << 12 | (split[..., 1, :] >> 4) << 14
    return words


def _pack_groups(weight: QuantizedWeight, words: Tensor) -> PackedQuantized:
    # [panels, groups, blocks, words, halves, channels, 2], as bytes
    words = words.permute(0, 3, 4, 5, 1, 2, 6).to(torch.uint16).contiguous()
    code_bytes = words.view(torch.uint8).reshape(words.shape[0], weight.num_groups, -1)
    scales = _pad(weight.scales).to(torch.bfloat16).view(-1, PANEL, weight.num_groups)
    scale_bytes = scales.transpose(1, 2).contiguous().view(torch.uint8)
    data = torch.cat([code_bytes, scale_bytes], dim=2)
    return PackedQuantized(data.flatten(), torch.empty(0))


def _pad(tensor: Tensor) -> Tensor:
    """With zeros, to whole panels."""
    missing = -len(tensor) % PANEL
    return F.pad(tensor, (0, 0) * (tensor.dim() - 1) + (0, missing)) if missing else tensor
