"""Tells KV of the same tokens from KV of others. Must not know blocks or images."""

import torch
from torch import Tensor

MAX_RELATIVE_ERROR = 0.1


def relative_errors(kv: Tensor, expected: Tensor) -> Tensor:
    """Norm of the difference over the norm of ``expected``, for keys and values of each layer.

    Both are [num_layers, num_tokens, 2, num_kv_heads, head_dim]; the result is [num_layers, 2].
    """
    over = (1, 3, 4)
    expected = expected.float()
    difference: Tensor = torch.linalg.vector_norm(kv.float() - expected, dim=over)
    return difference.div_(torch.linalg.vector_norm(expected, dim=over))


def is_same_kv(kv: Tensor, expected: Tensor) -> bool:
    """Whether both are of the same tokens, computed in chunks of whatever sizes."""
    errors = relative_errors(kv, expected)
    return bool((errors <= MAX_RELATIVE_ERROR).all())
