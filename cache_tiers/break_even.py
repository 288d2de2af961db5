"""How much of a prompt to load from where it lies, and how much to compute. Pure.

Time to first token if the leading ``n`` blocks are loaded:

    max(slowest medium's load + copy to the accelerator, queue of the engine) + computing the rest

which is taken for every ``n``; the least wins, and of equal ones the shortest load.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cache_tiers.media_rates import MediumRate
from cache_tiers.messages import RecomputeCost
from cache_tiers.tier import TierKind

BLIND_LOAD_S = 2.0
"""As much is loaded from other media than the host while nobody knows what computing takes."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Medium:
    """A medium as it is now."""

    rate: MediumRate
    waiting_s: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """What of a prompt could be loaded: leading blocks after those that the engine has."""

    kinds: Sequence[TierKind]
    """Of each block, where it lies."""
    num_tokens: Sequence[int]
    """Of each block."""
    image_bytes: int
    num_before: int
    """Tokens that the engine has."""
    num_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Choice:
    num_blocks: int
    load_s: float
    """Until the last is in the arena."""
    saved_s: float
    """Sooner than if all were computed; 0 where that is unknown."""


def choose(candidate: Candidate, media: Mapping[TierKind, Medium], cost: RecomputeCost) -> Choice:
    """The number of blocks with the least predicted time to first token."""
    num_blocks = len(candidate.kinds)
    loads = _load_seconds(candidate, media)  # [num_blocks + 1], as all that follow
    if cost.token_s <= 0 and cost.step_s <= 0:
        # Times rise with n; what the host has costs next to nothing.
        fits = loads <= BLIND_LOAD_S
        chosen = int(np.flatnonzero(fits)[-1])
        return Choice(chosen, float(loads[chosen]), 0.0)
    counts = np.arange(num_blocks + 1)
    copies = media[TierKind.HOST].rate.byte_s * candidate.image_bytes * counts
    copies[1:] += media[TierKind.HOST].rate.latency_s
    totals = np.maximum(loads + copies, cost.queue_s) + _recompute_seconds(candidate, cost)
    chosen = int(np.argmin(totals))
    return Choice(chosen, float(loads[chosen]), float(totals[0] - totals[chosen]))


def _load_seconds(candidate: Candidate, media: Mapping[TierKind, Medium]) -> Floats:
    """Media load side by side, each in the order of the blocks."""
    slowest = np.zeros(len(candidate.kinds) + 1)
    for kind in set(candidate.kinds) - {TierKind.HOST}:
        medium = media[kind]
        counts = np.cumsum([0] + [each is kind for each in candidate.kinds])
        begin_s = medium.waiting_s + medium.rate.latency_s
        seconds = begin_s + counts * (candidate.image_bytes * medium.rate.byte_s)
        slowest = np.maximum(slowest, np.where(counts > 0, seconds, 0.0))
    return slowest


def _recompute_seconds(candidate: Candidate, cost: RecomputeCost) -> Floats:
    begins = candidate.num_before + np.cumsum([0, *candidate.num_tokens])
    end = max(candidate.num_prompt_tokens, int(begins[-1]))
    left = end - begins
    num_steps = np.maximum(1.0, np.ceil(left / max(1, cost.step_tokens)))
    if cost.step_tokens <= 0:
        num_steps = np.ones(len(begins))
    attended = (end**2 - begins.astype(np.float64) ** 2) / 2
    seconds: Floats = num_steps * cost.step_s + left * cost.token_s + attended * cost.attended_s
    return seconds
