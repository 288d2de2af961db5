"""A linear layer whose input dimension is cut among tensor-parallel ranks."""

from torch import Tensor

from engine.collectives import Collectives
from engine.layers.linear import Linear


class RowParallelLinear:
    """Each rank computes its part of every sum; all ranks get the sums of all parts."""

    def __init__(self, linear: Linear, collectives: Collectives) -> None:
        self._linear = linear
        self._collectives = collectives

    def __call__(self, x: Tensor) -> Tensor:
        partial = summable(self._linear(x))
        self._collectives.all_reduce_(partial)
        return partial


def summable(partial: Tensor) -> Tensor:
    """``partial`` in the type in which ranks add it up: float32 on a CPU, so that the sum isn't
    rounded once more. On an accelerator that would double what a long prefill sends."""
    return partial.float() if partial.device.type == "cpu" else partial
