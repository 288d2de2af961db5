"""A digest of what, beside a checkpoint, decides the bytes of its packed weights.

Of the constants of rounding and calibration, and of small weights that are packed in every format:
a change of either makes other bytes, so files of before it are not taken for those that are needed.
Of calibration's pass through the model it holds only the constants.
"""

import hashlib
from collections.abc import Iterator
from typing import get_args

import torch
from torch import Tensor

from engine.models import calibration
from engine.native.packing import PanelShape, pack_panels
from engine.native.quantized_packing import pack_quantized_panels
from engine.quantization.layers import INT4_KINDS
from engine.quantization.panels import PANEL
from engine.quantization.rounding import SHARES
from engine.quantization.weight import CODEBOOKS, GROUP_SIZES, Scheme

_NUM_ROWS = (PANEL + 4, PANEL + 4)
_IN_FEATURES = 2 * max(GROUP_SIZES.values())


def recipe_digest() -> str:
    """The same in every process, whatever the model."""
    digest = hashlib.sha256()
    constants = (
        *(PANEL, GROUP_SIZES, INT4_KINDS, SHARES),
        *(codebook.tolist() for codebook in CODEBOOKS.values()),
        *(calibration.NUM_TOKENS, calibration.SEED),
    )
    digest.update(repr(constants).encode())
    for packed in _packed_samples():
        digest.update(packed.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def sample_weights() -> list[Tensor]:
    """Two of one layer, of few values each of which is exact in bfloat16."""
    numbers = torch.arange(sum(_NUM_ROWS) * _IN_FEATURES)
    values = (numbers * 7919 % 1009 % 255 - 127).to(torch.bfloat16) / 128
    return list(values.view(-1, _IN_FEATURES).split(_NUM_ROWS))


def _packed_samples() -> Iterator[Tensor]:
    weights = sample_weights()
    importance = 1.0 + torch.arange(_IN_FEATURES) % 5
    for is_interleaved in (False, True):
        yield pack_panels(PanelShape(_IN_FEATURES, _NUM_ROWS, is_interleaved), weights)
        for scheme in get_args(Scheme):
            shape = PanelShape(_IN_FEATURES, _NUM_ROWS, is_interleaved, scheme)
            yield from pack_quantized_panels(shape, weights, scheme, importance)
