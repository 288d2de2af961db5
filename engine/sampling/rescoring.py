"""Exact logits of a few tokens, where those of the whole vocabulary are too coarse.

bfloat16 logits are 1/8 apart at 25: several tokens tie for the likeliest, and log probabilities
are off by 0.06. Must not know how a model computes them.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Rescore = Callable[[Tensor], Tensor]
"""Token ids [num_rows, k] to their logits in float32 [num_rows, k], for all rows of a step."""


def for_samples(rescore: Rescore, rows: NDArray[np.int64], num_rows: int) -> Rescore:
    """``rescore`` for samples instead of rows: sample i draws from row ``rows[i]``.

    Rows may be left out, come in any order or several times.
    """
    if len(rows) == num_rows and (rows == np.arange(num_rows)).all():
        return rescore
    order = np.argsort(rows, kind="stable")
    in_order = rows[order]
    turns = np.empty_like(rows)  # of a sample among those of its row
    turns[order] = np.arange(len(rows)) - np.searchsorted(in_order, in_order)
    num_turns = int(turns.max()) + 1

    def rescore_samples(token_ids: Tensor) -> Tensor:
        num_ids = token_ids.shape[-1]
        places = torch.from_numpy(rows * num_turns + turns).to(token_ids.device)
        spread = token_ids.new_zeros(num_rows * num_turns, num_ids)
        spread[places] = token_ids
        logits = rescore(spread.view(num_rows, num_turns * num_ids))
        return logits.reshape(num_rows * num_turns, num_ids)[places]

    return rescore_samples
