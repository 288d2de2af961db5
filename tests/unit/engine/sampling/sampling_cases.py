"""What the tests of sampling share: a sampler with sequences in it, and draws of many positions."""

import numpy as np
import torch
from torch import Tensor

from engine.messages import SamplingParams
from engine.sampling.sampler import Rescore, Sampler
from engine.step import Admission, SampledToken

CPU = torch.device("cpu")


def make_sampler(*params: SamplingParams, vocab_size: int) -> Sampler:
    """With one sequence per slot, each of an empty prompt."""
    sampler = Sampler(len(params), vocab_size, CPU)
    for slot, one in enumerate(params):
        sampler.admit(Admission(slot, one, (), num_prompt_tokens=0))
    return sampler


def sample(
    sampler: Sampler,
    logits: Tensor,
    *,
    position: int = 5,
    rescore: Rescore | None = None,
) -> list[SampledToken]:
    """One token per row, row i for slot i."""
    places = np.arange(len(logits))
    return sampler.sample(logits, places, places, np.full(len(logits), position), rescore)


def draw_many(sampler: Sampler, logits: Tensor, num_draws: int, slot: int = 0) -> list[int]:
    """Draws of one slot from one row of logits, at positions 0, 1, 2, … with the same past."""
    sampled = sampler.sample(
        logits[None], np.zeros(num_draws, int), np.full(num_draws, slot), np.arange(num_draws)
    )
    return [token.token_id for token in sampled]
