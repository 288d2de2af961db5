"""An output layer that chooses the likeliest tokens of rows while it computes their logits.

Its twin is the same in two parts: logits, then `engine.sampling.greedy`. Must not know slots or
temperatures.
"""

from enum import IntFlag
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.base import IntArray


class RowWish(IntFlag):
    """What is wanted of a row of logits; both are possible."""

    PICK_TOKEN = 1
    """The likeliest token, of equals the lowest id."""
    KEEP_LOGITS = 2
    """The row itself, which else is left undefined."""


Wishes = NDArray[np.uint8]
"""Sums of `RowWish`."""


class PickedLogits(NamedTuple):
    """Valid until the next call."""

    logits: Tensor
    """[num_rows, vocab_size] In float32, of the rows that are kept."""
    token_ids: IntArray
    """[num_rows] Of the rows where one is wanted; -1 where a row holds NaN, or its largest logit is
    infinite."""


class GreedyHead(Protocol):
    """Decides by exact logits, as far as that can be told from the ones that it computes."""

    def pick(self, normed: Tensor, wishes: Wishes, *, largest_row_norm: float) -> PickedLogits:
        """Of ``normed`` [num_rows, hidden_size] in float32, not rounded; ``wishes`` is [num_rows],
        ``largest_row_norm`` as `engine.layers.vocabulary.Vocabulary` has it, or 0 where the logits
        are exact."""
        ...
