"""Fast ways to tokens, for float32 logits in the memory of a CPU.

What torch does in `engine.sampling.greedy` and `engine.sampling.drawing` is their twin, and what
serves everywhere else: other types, other devices, without a compiler. Must not know slots.
"""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.base import IntArray

MAX_NEAR = 8
"""Tokens of a row among which exact logits decide. A row where more are so close says nothing."""


class NearLargest(NamedTuple):
    """Tokens whose logits lie within a margin of the largest of their row."""

    ids: IntArray
    """[num_samples, MAX_NEAR] In rising order; places that are left repeat the last one."""
    num_found: NDArray[np.int32]
    """[num_samples] 0 where a row holds NaN or its largest logit is infinite."""


class SamplingKernels(Protocol):
    """Sample i belongs to row ``rows[i]`` of float32 logits [num_rows, vocab_size], and depends on
    nothing else. What is returned is valid until the next call."""

    def find_near_largest(
        self, logits: Tensor, rows: IntArray, margins: NDArray[np.float32]
    ) -> NearLargest:
        """``margins`` is [num_samples]; halved where they hold more than ``MAX_NEAR``, as long as
        these are not all equal."""
        ...

    def draw(self, scores: Tensor, rows: IntArray, columns: NDArray[np.float64]) -> IntArray:
        """[num_samples] Token ids, -1 where a row holds NaN or its largest score is infinite.

        ``columns`` [5, num_samples] are the fields of `DrawParams` in their order.
        """
        ...
