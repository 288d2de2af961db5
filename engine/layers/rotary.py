"""Rotary position embedding (RoPE, arXiv:2104.09864), in the half-split form of Llama
checkpoints."""

import torch
from torch import Tensor


class RotaryTable:
    """Cosines and sines of every position, computed once."""

    def __init__(
        self,
        *,
        head_dim: int,
        max_len: int,
        theta: float,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        angles = torch.outer(torch.arange(max_len, dtype=torch.float32), theta**-exponents)
        cos, sin = angles.cos(), angles.sin()
        # The sign of rotate_half is folded into the sines: rotated = x * cos + roll(x) * sin.
        self._cos = torch.cat((cos, cos), dim=-1).unsqueeze(1).to(device=device, dtype=dtype)
        self._sin = torch.cat((-sin, sin), dim=-1).unsqueeze(1).to(device=device, dtype=dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, each [num_tokens, 1, head_dim]."""
        return self._cos.index_select(0, positions), self._sin.index_select(0, positions)


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate ``heads`` [num_tokens, num_heads, head_dim] in place."""
    swapped = torch.roll(heads, heads.shape[-1] // 2, dims=-1)
    heads.mul_(cos).addcmul_(swapped, sin)
