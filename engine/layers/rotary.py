"""Rotary position embedding (RoPE, arXiv:2104.09864), in the half-split form of Hugging Face
checkpoints.

Angles are computed for the positions of each step: that costs microseconds, where a table of a
long context would cost gigabytes. The frequencies equal transformers' ``ROPE_INIT_FUNCTIONS``.

*Dynamic* scaling asks for a base that grows with the length of the sequence. Keys in the pool are
turned already, and a block of it may serve many sequences, so the turn of a token must depend on
its position alone: the base is that of a sequence which ends at the token. This is what
transformers computes, too, as long as the prompt fits into the original length, and for every
token it then generates; a longer prompt it turns as a whole by the base of its end, which neither
chunks nor a prefix cache could reproduce.
"""

import math

import torch
from torch import Tensor

from engine.models.rope import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    YarnScaling,
)


class RotaryEmbedding:
    """Cosines and sines of one ``RopeConfig``."""

    def __init__(
        self, rope: RopeConfig, *, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._dtype = dtype
        self._dynamic = rope.scaling if isinstance(rope.scaling, DynamicScaling) else None
        self._theta = rope.theta
        # float32, as the checkpoints were trained with; [head_dim / 2]
        self._exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        self._frequencies = _frequencies(rope, self._exponents).to(device)
        self._exponents = self._exponents.to(device)
        scaling = rope.scaling
        self._magnitude = scaling.attention_factor if isinstance(scaling, YarnScaling) else 1.0

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and signed sines, each [num_tokens, 1, head_dim]."""
        shape = (len(positions), self._exponents.shape[0])
        cos, sin = (
            torch.empty(shape, dtype=torch.float32, device=positions.device) for _ in range(2)
        )
        self.fill(positions, cos, sin)
        # The sign of rotate_half is folded into the sines: rotated = x * cos + roll(x) * sin.
        return (
            torch.cat((cos, cos), dim=-1).unsqueeze(1).to(self._dtype),
            torch.cat((-sin, sin), dim=-1).unsqueeze(1).to(self._dtype),
        )

    def fill(self, positions: Tensor, cos: Tensor, sin: Tensor) -> None:
        """Write cosines and sines, each [num_tokens, head_dim / 2] in float32."""
        steps = positions[:, None].float()
        frequencies = self._frequencies if self._dynamic is None else self._stretched(steps)
        angles = steps * frequencies
        torch.cos(angles, out=cos)
        torch.sin(angles, out=sin)
        if self._magnitude != 1.0:
            cos *= self._magnitude
            sin *= self._magnitude

    def _stretched(self, steps: Tensor) -> Tensor:
        """[num_tokens, head_dim / 2] Frequencies of sequences that end at each position."""
        assert self._dynamic is not None
        factor, original_len = self._dynamic.factor, self._dynamic.original_len
        lens = (steps + 1).clamp(min=original_len)
        head_dim = 2 * self._exponents.shape[0]
        growth = (factor * lens / original_len - (factor - 1)) ** (head_dim / (head_dim - 2))
        return 1.0 / ((self._theta * growth) ** self._exponents)


def rotate_(heads: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotate ``heads`` [num_tokens, num_heads, head_dim] in place."""
    swapped = torch.roll(heads, heads.shape[-1] // 2, dims=-1)
    heads.mul_(cos).addcmul_(swapped, sin)


def _frequencies(rope: RopeConfig, exponents: Tensor) -> Tensor:
    """[head_dim / 2] Radians per position."""
    plain = 1.0 / (rope.theta**exponents)
    match rope.scaling:
        case LinearScaling(factor):
            return plain / factor
        case YarnScaling():
            return _yarn(plain, rope.theta, rope.scaling)
        case Llama3Scaling():
            return _llama3(plain, rope.scaling)
        case _:
            return plain


def _yarn(plain: Tensor, theta: float, scaling: YarnScaling) -> Tensor:
    num_frequencies = plain.shape[0]
    head_dim = 2 * num_frequencies

    def dimension_of(num_rotations: float) -> float:
        """The dimension that turns so often within the original context."""
        turns = scaling.original_len / (num_rotations * 2 * math.pi)
        return head_dim * math.log(turns) / (2 * math.log(theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.is_truncated:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    ramp = ((torch.arange(num_frequencies, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return plain / scaling.factor * ramp + plain * (1 - ramp)


def _llama3(plain: Tensor, scaling: Llama3Scaling) -> Tensor:
    wavelengths = 2 * math.pi / plain
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    share = (scaling.original_len / wavelengths - low) / (high - low)
    # Below 0 the wavelength is long and slows down fully, above 1 it is short and stays.
    share = share.clamp(0, 1)
    return (1 - share) * plain / scaling.factor + share * plain
