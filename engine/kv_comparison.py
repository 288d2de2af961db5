"""Tells KV of the same tokens from KV of others. Must not know blocks or images.

KV computed again is not equal bit by bit: another back end, or chunks of other sizes, sum in
another order. A layer's input has been rounded twice per layer before it, each time by up to half
of ``finfo.eps``, and such errors add up like a random walk. SmolLM2 in bfloat16 (30 layers): at
most 0.015 between chunk sizes and 0.024 between back ends, where 0.061 is allowed. KV of other
tokens differs by 1.3 and more, that of one other token among 16 by 0.47.
"""

import math

import torch
from torch import Tensor

_MIN_TOLERANCE = 1e-3
"""In float32, where sums of large numbers that cancel out count for more than the depth."""


def relative_errors(kv: Tensor, expected: Tensor) -> Tensor:
    """Norm of the difference over the norm of ``expected``, for keys and values of each layer.

    Both are [num_layers, num_tokens, 2, num_kv_heads, head_dim]; the result is [num_layers, 2].
    """
    over = (1, 3, 4)
    expected = expected.float()
    difference: Tensor = torch.linalg.vector_norm(kv.float() - expected, dim=over)
    return difference.div_(torch.linalg.vector_norm(expected, dim=over))


def is_same_kv(kv: Tensor, expected: Tensor) -> bool:
    """Whether both are of the same tokens, apart from rounding; NaN is never the same."""
    tolerance = torch.finfo(kv.dtype).eps * math.sqrt(2 * kv.shape[0])
    return bool((relative_errors(kv, expected) <= max(tolerance, _MIN_TOLERANCE)).all())
