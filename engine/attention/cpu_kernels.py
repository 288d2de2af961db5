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
_MIN_MATMUL_ROWS = 1024
"""From this many gathered rows on, batched matrix products beat the fused kernel in bfloat16."""
_MAX_MATMUL_KV_HEADS = 4
"""Their work grows with the square of the KV heads."""


def attend_prefill(query: Tensor, kv: Tensor, output: Tensor) -> None:
    """Causal attention of the last ``num_tokens`` positions of one sequence.

    ``query`` and ``output`` are [num_tokens, num_heads, head_dim], ``kv`` is [context_len, 2,
    num_kv_heads, head_dim]. Matrix products, not torch's fused kernel: in bfloat16 that takes
    about twice as long. Scores are rounded to the dtype before the softmax, as transformers does.
    """
    num_tokens, num_heads, head_dim = query.shape
    context_len, _, num_kv_heads, _ = kv.shape
    group = num_heads // num_kv_heads
    keys, values = kv.permute(1, 2, 0, 3).unbind(0)  # [num_kv_heads, context_len, head_dim]
    scaled = query * head_dim**-0.5
    is_future = torch.ones(_QUERY_TILE, _QUERY_TILE, dtype=torch.bool).triu(diagonal=1)
    for begin in range(0, num_tokens, _QUERY_TILE):
        end = min(begin + _QUERY_TILE, num_tokens)
        tile = end - begin
        visible = context_len - num_tokens + end
        queries = scaled[begin:end].view(tile, num_kv_heads, group, head_dim).permute(1, 2, 0, 3)
        queries = queries.reshape(num_kv_heads, group * tile, head_dim)
        scores = torch.bmm(queries, keys[:, :visible].transpose(1, 2))
        # Only the tile's own positions, the last of its context, hold a future.
        own = scores.view(num_heads, tile, visible)[:, :, visible - tile :]
        own.masked_fill_(is_future[:tile, :tile], -torch.inf)
        attended = torch.bmm(scores.softmax(dim=-1), values[:, :visible])
        attended = attended.view(num_kv_heads, group, tile, head_dim).permute(2, 0, 1, 3)
        output[begin:end].view(tile, num_kv_heads, group, head_dim).copy_(attended)


def attend_decodes(query: Tensor, kv: Tensor, mask: Tensor | None) -> Tensor:
    """Attention of one query per sequence, [num_seqs, num_heads, head_dim].

    ``query`` has that shape too, ``kv`` is [num_seqs, context_len, 2, num_kv_heads, head_dim] and
    ``mask`` [num_seqs, context_len], True where a row is the sequence's own.
    """
    num_seqs, context_len, _, num_kv_heads, _ = kv.shape
    if (
        kv.dtype == torch.bfloat16
        and num_seqs * context_len >= _MIN_MATMUL_ROWS
        and num_kv_heads <= _MAX_MATMUL_KV_HEADS
    ):
        return _attend_decodes_by_matmul(query, kv, mask)
    return _attend_decodes_fused(query, kv, mask)


def _attend_decodes_fused(query: Tensor, kv: Tensor, mask: Tensor | None) -> Tensor:
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads = kv.shape[3]
    keys, values = kv.permute(2, 0, 3, 1, 4).unbind(0)
    attended = F.scaled_dot_product_attention(
        query.view(num_seqs, num_kv_heads, num_heads // num_kv_heads, head_dim),
        keys,
        values,
        attn_mask=None if mask is None else mask[:, None, None],
    )
    return attended.flatten(1, 2)


def _attend_decodes_by_matmul(query: Tensor, kv: Tensor, mask: Tensor | None) -> Tensor:
    """All heads of a sequence in one product: each query is widened to all KV heads, with zeros
    for those that aren't its own, and takes its own part of the result."""
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads = kv.shape[3]
    group = num_heads // num_kv_heads
    keys, values = kv.flatten(3).unbind(2)  # [num_seqs, context_len, num_kv_heads * head_dim]
    queries = (query * head_dim**-0.5).view(num_seqs, num_kv_heads, group, head_dim)
    wide = query.new_zeros(num_seqs, num_kv_heads, group, num_kv_heads, head_dim)
    wide.diagonal(dim1=1, dim2=3).copy_(queries.permute(0, 2, 3, 1))
    # Keys first: their rows lie as the product wants them, and the queries are small to transpose.
    scores = torch.bmm(keys, wide.view(num_seqs, num_heads, -1).transpose(1, 2)).transpose(1, 2)
    scores = scores.float()  # [num_seqs, num_heads, context_len]
    if mask is not None:
        scores.masked_fill_(~mask[:, None], -torch.inf)
    attended = torch.bmm(scores.softmax(dim=-1).to(query.dtype), values)
    attended = attended.view(num_seqs, num_kv_heads, group, num_kv_heads, head_dim)
    return attended.diagonal(dim1=1, dim2=3).permute(0, 3, 1, 2).flatten(1, 2)
