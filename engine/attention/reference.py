"""Attention in plain torch, one sequence after the other, in float32: slow, and obviously right."""

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.attention.base import RaggedBatch, StepAttention

QUERY_TILE = 128
"""Queries whose scores exist at once: a long chunk's would take tens of gigabytes in float32."""


@dataclass(frozen=True, slots=True)
class ReferenceAttention:
    """Runs on any device."""

    device: torch.device
    scale: float

    def prepare(self, batch: RaggedBatch) -> StepAttention:
        return _ReferenceStep(batch, self.device, self.scale)


class _ReferenceStep:
    def __init__(self, batch: RaggedBatch, device: torch.device, scale: float) -> None:
        self._scale, self._window = scale, batch.window
        self._new_rows = torch.from_numpy(batch.new_rows()).to(device)
        self._sequences = [
            (
                int(batch.token_starts[index]),
                int(batch.num_tokens[index]),
                torch.from_numpy(batch.context_rows(index)).to(device),
            )
            for index in range(len(batch.starts))
        ]

    def __call__(self, query: Tensor, new_kv: Tensor, kv: Tensor) -> Tensor:
        kv[self._new_rows] = new_kv
        outputs = [
            attend_one(
                query[first : first + num_tokens],
                kv[rows, 0],
                kv[rows, 1],
                scale=self._scale,
                window=self._window,
            )
            for first, num_tokens, rows in self._sequences
        ]
        return torch.cat(outputs).flatten(1)


def attend_one(
    query: Tensor, keys: Tensor, values: Tensor, *, scale: float, window: int | None = None
) -> Tensor:
    """Causal attention of the last ``num_tokens`` positions of one sequence.

    ``query`` is [num_tokens, num_heads, head_dim], ``keys`` and ``values`` [context_len,
    num_kv_heads, head_dim]; each query attends to the last ``window`` tokens up to its own.
    """
    num_tokens, num_heads, _ = query.shape
    context_len, num_kv_heads, _ = keys.shape
    keys = keys.repeat_interleave(num_heads // num_kv_heads, dim=1).float()
    values = values.repeat_interleave(num_heads // num_kv_heads, dim=1).float()
    key_positions = torch.arange(context_len, device=query.device)
    outputs = []
    for tile, own_positions in zip(
        query.split(QUERY_TILE), key_positions[-num_tokens:, None].split(QUERY_TILE), strict=True
    ):
        is_visible = key_positions <= own_positions
        if window is not None:
            is_visible &= key_positions > own_positions - window
        scores = torch.einsum("qhd,khd->hqk", tile.float(), keys) * scale
        weights = scores.masked_fill(~is_visible, -torch.inf).softmax(dim=-1)
        outputs.append(torch.einsum("hqk,khd->qhd", weights, values).to(query.dtype))
    return torch.cat(outputs)
