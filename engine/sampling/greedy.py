"""Temperature 0: the likeliest token after bias and penalties; of equals the lowest id.

Must not know slots and temperatures.
"""

import numpy as np
import torch
from torch import Tensor

from engine.attention.base import IntArray
from engine.sampling.adjustments import BatchAdjustments
from engine.sampling.kernels import NearLargest
from engine.sampling.likeliest import likeliest
from engine.sampling.rescoring import Rescore

_NUM_TIED = 4
"""Tokens among which exact logits decide, where coarse ones may tie."""


def pick_greedily(
    logits: Tensor, adjustments: BatchAdjustments | None, rescore: Rescore | None
) -> Tensor:
    """[num_rows] Token ids, of ``logits`` [num_rows, vocab_size] in any type; -1 where they are NaN
    or infinite.

    ``rescore`` is given if the type is a coarse one; adjustments then count for the exact logits,
    too.
    """
    if adjustments is None:
        # In their own type: a float32 copy would cost more than the search.
        found = likeliest(logits, _NUM_TIED)
        is_finite = found.values[:, 0].isfinite()
    else:
        raw = logits.float()
        found = likeliest(adjustments.applied_to(raw), _NUM_TIED)
        is_finite = raw.amax(dim=-1).isfinite()
    ids, order = found.ids.sort(dim=-1)
    if rescore is None:
        values = found.values.gather(-1, order)
    else:
        is_possible = logits.gather(-1, ids) > -torch.inf
        values = rescore(ids).where(is_possible, -torch.inf)
        if adjustments is not None:
            with_exact = raw.scatter(-1, ids, values)
            values = adjustments.applied_to(with_exact, is_in_place=True).gather(-1, ids)
    tokens = ids.gather(-1, values.argmax(dim=-1, keepdim=True)).flatten()
    return tokens.masked_fill(~is_finite, -1)


def pick_among_near(near: NearLargest, rescore: Rescore | None) -> IntArray:
    """[num_samples] Token ids, as `pick_greedily` gives them: of those near the largest logit the
    one with the largest exact one. ``rescore`` is given unless the logits are exact."""
    tokens = near.ids[:, 0]
    most_found = int(near.num_found.max())
    if rescore is not None and most_found > 1:
        ids = near.ids[:, :most_found]
        places = rescore(torch.from_numpy(ids)).argmax(dim=-1).numpy()
        tokens = ids[np.arange(len(ids)), places]
    return np.where(near.num_found > 0, tokens, -1)
