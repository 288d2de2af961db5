"""From logits to tokens: greedy, temperature, top-p.

Every draw is a pure function of a row's logits, its parameters and (seed, position), so that
preemption, migration and the rest of the batch don't change it. Must not know sequences, only
slots.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import RunnerError
from engine.messages import SamplingParams

Rescore = Callable[[Tensor], Tensor]
"""Token ids [num_rows, num_tokens] to their logits in float32."""

_NUM_RESCORED = 4
"""Tokens that may tie for the likeliest; as cheap to find as the likeliest alone."""
_FIRST_TOP_K = 256
"""Tokens that usually hold the whole nucleus; a full sort of the vocabulary is the fallback."""


class Sampler:
    """Owner of the sampling parameters of every slot."""

    def __init__(self, num_slots: int) -> None:
        self._temperature = np.zeros(num_slots, dtype=np.float32)
        self._top_p = np.ones(num_slots, dtype=np.float64)
        self._seed = np.zeros(num_slots, dtype=np.uint64)

    def admit(self, slot: int, params: SamplingParams) -> None:
        """Remember the parameters of the sequence that enters ``slot``."""
        self._temperature[slot] = params.temperature
        self._top_p[slot] = params.top_p
        self._seed[slot] = params.seed

    def sample(
        self,
        logits: Tensor,
        slots: NDArray[np.int64],
        positions: NDArray[np.int64],
        rescore: Rescore | None = None,
    ) -> NDArray[np.int64]:
        """One token per row of ``logits`` [num_rows, vocab_size].

        ``positions`` are those that the new tokens will have. ``rescore`` decides between the
        likeliest tokens where ``logits`` are too coarse to. Raises `RunnerError` on NaN or
        infinite logits: the whole step fails, for the KV that later steps read is not to be
        trusted either.
        """
        best, best_ids = logits.topk(min(_NUM_RESCORED, logits.shape[-1]), dim=-1)
        is_bad = ~best[:, 0].isfinite()
        if is_bad.any():
            num_bad = int(is_bad.sum())
            raise RunnerError(
                f"the model computed NaN or infinite logits for {num_bad} of {len(slots)} rows."
            )
        if rescore is not None and logits.dtype is not torch.float32:
            best_ids = best_ids.gather(-1, rescore(best_ids).argmax(dim=-1, keepdim=True))
        tokens: NDArray[np.int64] = best_ids[:, 0].cpu().numpy().copy()
        is_random = self._temperature[slots] > 0
        if is_random.any():
            rows = np.flatnonzero(is_random)
            picked = slots[rows]
            tokens[rows] = _draw(
                logits[torch.from_numpy(rows).to(logits.device)].float(),
                torch.from_numpy(self._temperature[picked]),
                torch.from_numpy(self._top_p[picked]),
                torch.from_numpy(uniform(self._seed[picked], positions[rows])),
            )
        return tokens


def uniform(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each (seed, position): two rounds of the SplitMix64 finalizer
    (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014)."""
    mixed = _mix(_mix(positions.astype(np.uint64)) ^ seeds)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _draw(
    logits: Tensor, temperature: Tensor, top_p: Tensor, uniforms: Tensor
) -> NDArray[np.int64]:
    """Inverse of the cumulative distribution in the order of token ids; a filtered token has no
    width."""
    device = logits.device
    shifted = logits - logits.amax(dim=-1, keepdim=True)  # keeps tiny temperatures finite
    weights = torch.softmax(shifted / temperature.to(device)[:, None], dim=-1).double()
    is_filtered = top_p < 1.0
    if is_filtered.any():
        rows = is_filtered.nonzero().flatten().to(device)
        subset = weights[rows]
        threshold = _nucleus_threshold(subset, top_p.to(device)[rows])
        weights[rows] = subset.masked_fill(subset < threshold, 0.0)
    cumulative = weights.cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Rounding must not lift a target to the total, beyond the last token.
    below_total = torch.nextafter(total, torch.zeros_like(total))
    targets = torch.minimum(uniforms.to(device)[:, None] * total, below_total)
    drawn: NDArray[np.int64] = (
        torch.searchsorted(cumulative, targets, right=True).flatten().cpu().numpy()
    )
    return drawn


def _nucleus_threshold(weights: Tensor, top_p: Tensor) -> Tensor:
    """[num_rows, 1] Weight of the last token of the nucleus: the fewest likeliest tokens whose sum
    reaches ``top_p``. Tokens that tie with it belong to it, so that no order among equals
    matters."""
    target = top_p[:, None]
    k = min(_FIRST_TOP_K, weights.shape[-1])
    likeliest = weights.topk(k, dim=-1).values
    if (likeliest.sum(dim=-1, keepdim=True) < target).any():
        likeliest = weights.sort(dim=-1, descending=True).values
    # The sum may stay below top_p by rounding: then the last index, and all tokens are in.
    last = (likeliest.cumsum(dim=-1) < target).sum(dim=-1, keepdim=True)
    return likeliest.gather(-1, last.clamp(max=likeliest.shape[-1] - 1))
