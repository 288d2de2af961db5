"""The largest values of wide rows, faster than `torch.topk` over whole rows.

A row is cut into blocks. The k largest values lie in the k blocks with the largest maxima (each
of these holds a value that no other block exceeds), so that one pass finds the maxima and only k
blocks are looked into; the maxima are searched in the same way. For 64 rows of 49,152 on one CPU
thread: k = 4 takes 0.5 instead of 2.7 ms, k = 128 takes 2.4 instead of 7.4.
"""

from typing import NamedTuple

import torch
from torch import Tensor

_BLOCK_LEN = 8
_MIN_BLOCKS_PER_K = 4
"""With fewer blocks, those looked into are too large a part of the row."""


class Likeliest(NamedTuple):
    values: Tensor
    """[num_rows, k], the largest first if sorted; NaN counts as larger than any number."""
    ids: Tensor
    """[num_rows, k] Their places in the row, in no set order among equal values."""


def likeliest(scores: Tensor, k: int, *, is_sorted: bool = True) -> Likeliest:
    """The min(k, vocab_size) largest of each row of ``scores`` [num_rows, vocab_size]."""
    vocab_size = scores.shape[-1]
    num_blocks = vocab_size // _BLOCK_LEN
    if num_blocks < max(k, 1) * _MIN_BLOCKS_PER_K:
        return Likeliest(*scores.topk(min(k, vocab_size), dim=-1, sorted=is_sorted))
    # A block's members stand num_blocks apart: maxima over a dimension that isn't the last one
    # are several times faster.
    num_in_blocks = num_blocks * _BLOCK_LEN
    blocks = scores[:, :num_in_blocks].unflatten(-1, (_BLOCK_LEN, num_blocks))
    picked = likeliest(blocks.amax(dim=1), k, is_sorted=False).ids
    members = picked[:, None] + torch.arange(_BLOCK_LEN, device=scores.device)[:, None] * num_blocks
    rest = torch.arange(num_in_blocks, vocab_size, device=scores.device)
    ids = torch.cat([members.flatten(1), rest.expand(len(scores), -1)], dim=-1)
    values, places = scores.gather(-1, ids).topk(k, dim=-1, sorted=is_sorted)
    return Likeliest(values, ids.gather(-1, places))
