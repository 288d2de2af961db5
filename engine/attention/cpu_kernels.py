"""Dense attention on gathered KV, in the form that is fastest on a CPU for its shape.

The heads that share a KV head stand in the query dimension, so that each key and value is read
once. Must not know pools or block tables.
"""

import torch
import torch.nn.functional as F  # noqa: N812 - the field's name for it
from torch import Tensor

_QUERY_TILE = 64
"""A tile of queries attends only up to its own last one: near half of the work of a whole
prompt."""


def attend_prefill(
    query: Tensor, kv: Tensor, output: Tensor, *, scale: float, window: int | None
) -> None:
    """Causal attention of the last ``num_tokens`` positions of one sequence.

    ``query`` and ``output`` are [num_tokens, num_heads, head_dim], ``kv`` is [context_len, 2,
    num_kv_heads, head_dim] and begins where the first query's ``window`` does, or before.

    Matrix products, not torch's fused kernel: in bfloat16 that takes about twice as long. Scores
    are rounded to the dtype before the softmax, as transformers does.
    """
    num_tokens, num_heads, head_dim = query.shape
    context_len, _, num_kv_heads, _ = kv.shape
    group = num_heads // num_kv_heads
    keys, values = kv.permute(1, 2, 0, 3).unbind(0)  # [num_kv_heads, context_len, head_dim]
    scaled = query * scale
    is_future = torch.ones(_QUERY_TILE, _QUERY_TILE, dtype=torch.bool).triu(diagonal=1)
    for begin in range(0, num_tokens, _QUERY_TILE):
        end = min(begin + _QUERY_TILE, num_tokens)
        tile = end - begin
        visible_end = context_len - num_tokens + end
        window_begin = 0 if window is None else visible_end - tile + 1 - window
        visible_begin = max(0, window_begin)
        queries = scaled[begin:end].view(tile, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
        queries = queries.reshape(num_kv_heads, group * tile, head_dim)
        scores = torch.bmm(queries, keys[:, visible_begin:visible_end].transpose(1, 2))
        by_head = scores.view(num_heads, tile, visible_end - visible_begin)
        # Only the tile's own positions, the last of its context, hold a future.
        by_head[:, :, -tile:].masked_fill_(is_future[:tile, :tile], -torch.inf)
        if window is not None:
            _mask_before_windows(by_head, visible_begin - window_begin)
        attended = torch.bmm(scores.softmax(dim=-1), values[:, visible_begin:visible_end])
        attended = attended.view(num_kv_heads, group, tile, head_dim).permute(2, 0, 1, 3)
        output[begin:end].view(tile, num_kv_heads, group, head_dim).copy_(attended)


def _mask_before_windows(scores: Tensor, num_hidden: int) -> None:
    """Take out what lies before the window of each query of a tile.

    ``scores`` is [num_heads, tile, visible]; the first query's window begins ``num_hidden``
    positions before the first visible one, each next one's a position later.
    """
    tile, width = scores.shape[1], min(scores.shape[1:])
    is_past = torch.ones(tile, width, dtype=torch.bool).tril(diagonal=-1 - num_hidden)
    scores[:, :, :width].masked_fill_(is_past, -torch.inf)


def attend_decodes(query: Tensor, kv: Tensor, mask: Tensor | None, *, scale: float) -> Tensor:
    """Attention of one query per sequence, [num_seqs, num_heads, head_dim].

    ``query`` has that shape too, ``kv`` is [num_seqs, context_len, 2, num_kv_heads, head_dim] and
    ``mask`` [num_seqs, context_len], True where a row is the sequence's own. Torch's fused kernel:
    with one query each, matrix products gain nothing that can be measured in a whole step.
    """
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads = kv.shape[3]
    keys, values = kv.permute(2, 0, 3, 1, 4).unbind(0)
    attended = F.scaled_dot_product_attention(
        query.view(num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim),
        keys,
        values,
        attn_mask=None if mask is None else mask[:, None, None],
        scale=scale,
    )
    return attended.flatten(1, 2)
