"""Temperature 0: the likeliest token after bias and penalties; of equals the lowest id.

Must not know slots and temperatures.
"""

import torch
from torch import Tensor

from engine.sampling.adjustments import BatchAdjustments
from engine.sampling.likeliest import likeliest
from engine.sampling.rescoring import Rescore

_NUM_TIED = 4
"""Tokens among which exact logits decide, where coarse ones may tie."""


def pick_greedily(
    logits: Tensor, adjustments: BatchAdjustments | None, rescore: Rescore | None
) -> Tensor:
    """[num_rows] Token ids, of ``logits`` [num_rows, vocab_size] in float32.

    ``rescore`` is given if these were computed in a coarser type; adjustments then count for the
    exact logits, too.
    """
    scores = logits if adjustments is None else adjustments.applied_to(logits)
    ids = likeliest(scores, _NUM_TIED).ids.sort(dim=-1).values
    if rescore is not None:
        coarse = logits.gather(-1, ids)
        exact = rescore(ids).masked_fill(coarse == -torch.inf, -torch.inf)
        if adjustments is None:
            values = exact
        else:
            values = adjustments.applied_to(logits.scatter(-1, ids, exact)).gather(-1, ids)
    else:
        values = scores.gather(-1, ids)
    return ids.gather(-1, values.argmax(dim=-1, keepdim=True)).flatten()
