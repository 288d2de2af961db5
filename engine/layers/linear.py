"""Linear layers: ``y = x W^T + b``, in two layouts of the same weights.

*Mapped* keeps the checkpoint's tensors as they lie in the mapped file: no memory of its own,
shared by all processes of a node. *Packed* lets oneDNN reorder them once into its own blocked
layout: one private copy, for which a CPU step of up to 64 tokens takes about half the time. Layers
with the same input are fused in both: one call, outputs side by side.
"""

import os
from collections.abc import Sequence
from typing import Literal, Protocol

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

WeightLayout = Literal["mapped", "packed"]


MAX_CACHED_SHAPES = 64
"""oneDNN and PyTorch's layer above it each keep what they prepared for a number of tokens, up to
1024 entries of about 1 MB each: mixed batches let a process grow by 1 GB in minutes. Preparing one
anew takes about 0.3 ms, far less than the layers that then share it."""


def limit_shape_caches() -> None:
    """Bound both caches in this process, unless its environment already does.

    Precondition: no linear layer has run yet, since that reads the limits.
    """
    for variable in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(variable, str(MAX_CACHED_SHAPES))


class Linear(Protocol):
    """[num_tokens, in_features] to [num_tokens, sum of out_features]."""

    def __call__(self, x: Tensor) -> Tensor: ...


class MappedLinear:
    """Plain torch; the twin that ``PackedLinear`` is tested against."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None) -> None:
        self._parts = [
            (weight, None if biases is None else biases[index])
            for index, weight in enumerate(weights)
        ]

    def __call__(self, x: Tensor) -> Tensor:
        outputs = [F.linear(x, weight, bias) for weight, bias in self._parts]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)


class PackedLinear:
    """oneDNN with weights in its blocked layout. Needs ``can_pack``."""

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None) -> None:
        weight = weights[0] if len(weights) == 1 else torch.cat(tuple(weights))
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), None)  # noqa: SLF001
        self._bias = None if biases is None else torch.cat(tuple(biases))

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")  # noqa: SLF001
        return y


def create_linear(
    weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None, *, layout: WeightLayout
) -> Linear:
    """One layer whose output is that of all ``weights`` ([out_features, in_features]) side by
    side."""
    return PackedLinear(weights, biases) if layout == "packed" else MappedLinear(weights, biases)


def can_pack(dtype: torch.dtype) -> bool:
    """Whether this build of torch and this processor run packed layers in ``dtype``.

    The operators behind it are private to torch, and builds without oneDNN lack them: so try, and
    compare.
    """
    weight = torch.linspace(-1, 1, 64 * 32).view(64, 32).to(dtype)
    x = torch.linspace(-1, 1, 3 * 32).view(3, 32).to(dtype)
    try:
        packed = PackedLinear([weight])(x)
    except (AttributeError, RuntimeError, TypeError):
        return False
    return torch.allclose(packed.float(), F.linear(x, weight).float(), rtol=0.02, atol=0.02)
