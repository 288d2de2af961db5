"""What goes to kernels, and that it comes out as from torch; brute force stands in for them."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.attention.base import IntArray
from engine.layers.greedy_head import RowWish
from engine.messages import SamplingParams
from engine.sampling.drawing import DrawParams, draw_filtered
from engine.sampling.kernels import MAX_NEAR, NearLargest
from engine.sampling.sampler import Sampler
from engine.step import Admission
from tests.unit.engine.sampling.sampling_cases import CPU
from tests.unit.engine.sampling.test_sampler import EVERY_KIND, admit_every_kind, random_logits


class BruteForce:
    """``SamplingKernels`` that count the samples they were given."""

    def __init__(self) -> None:
        self.num_sought = 0
        self.num_drawn = 0

    def find_near_largest(
        self, logits: Tensor, rows: IntArray, margins: NDArray[np.float32]
    ) -> NearLargest:
        self.num_sought += len(rows)
        ids = np.zeros((len(rows), MAX_NEAR), dtype=np.int64)
        num_found = np.zeros(len(rows), dtype=np.int32)
        for sample, (row, margin) in enumerate(zip(rows, margins, strict=True)):
            scores = logits[row].numpy()
            if np.isfinite(scores.max()):
                near = np.flatnonzero(scores >= scores.max() - margin)[:MAX_NEAR]
                num_found[sample] = len(near)
                ids[sample] = np.pad(near, (0, MAX_NEAR - len(near)), mode="edge")
        return NearLargest(ids, num_found)

    def draw(self, scores: Tensor, rows: IntArray, columns: NDArray[np.float64]) -> IntArray:
        self.num_drawn += len(rows)
        own = scores[torch.from_numpy(rows)]
        tokens = draw_filtered(own, DrawParams.on_device(columns, CPU))
        return tokens.masked_fill(~own.amax(dim=-1).isfinite(), -1).numpy()


def test_every_kind_of_sample_is_chosen_as_without_kernels() -> None:
    """Twice per row, in an order of its own; one row is not finite."""
    kernels = BruteForce()
    logits = random_logits(8)
    logits[5, 7] = torch.nan
    rows = np.array([5, 0, 7, 3, 6, 1, 2, 4] * 2)
    slots = np.concatenate([np.arange(8), np.arange(8, 16)])
    found = []
    for sampler in (Sampler(16, 3000, CPU), Sampler(16, 3000, CPU, kernels)):
        admit_every_kind(sampler, list(range(8)))
        admit_every_kind(sampler, list(range(15, 7, -1)))
        found.append(sampler.sample(logits, rows, slots, np.full(16, 9)))
    assert found[0] == found[1]
    assert [token.token_id for token in found[1]].count(-1) == 2
    assert kernels.num_sought == 2, "greedy without a bias"
    assert kernels.num_drawn == 12, "all that are not greedy"


@pytest.mark.parametrize("margin", [0.05, 0.2])
def test_exact_logits_decide_among_those_within_the_margin(margin: float) -> None:
    coarse = torch.tensor([[1.0, 5.0, 5.1, 0.0], [3.0, 2.0, 1.0, 0.0]])
    exact = torch.tensor([[1.0, 5.2, 5.1, 9.0], [1.0, 2.0, 1.0, 0.0]])
    sampler = Sampler(2, 4, CPU, BruteForce())
    for slot in range(2):
        sampler.admit(Admission(slot, SamplingParams(1, temperature=0.0), (), 0))
    places = np.arange(2)
    found = sampler.sample(
        coarse,
        places,
        places,
        places,
        rescore=lambda ids: exact.gather(-1, ids),
        margins=np.full(2, margin, dtype=np.float32),
    )
    assert [token.token_id for token in found] == [2 if margin < 0.1 else 1, 0]


def test_coarse_logits_without_margins_are_all_scored_again() -> None:
    exact = torch.tensor([[1.0, 5.2, 5.1, 0.0]])
    sampler = Sampler(1, 4, CPU, BruteForce())
    sampler.admit(Admission(0, EVERY_KIND[0], (), 0))
    nothing = np.zeros(1, int)
    found = sampler.sample(
        torch.tensor([[1.0, 5.0, 5.1, 0.0]]),
        nothing,
        nothing,
        nothing,
        rescore=lambda ids: exact.gather(-1, ids),
    )
    assert found[0].token_id == 1


def test_what_a_head_has_picked_is_taken_and_the_rest_is_chosen_as_without() -> None:
    """Rows of which nothing is wanted but a token aren't looked at."""
    logits = random_logits(9)
    places, positions = np.arange(9), np.full(9, 9)
    samplers = [Sampler(9, 3000, CPU, BruteForce()) for _ in range(2)]
    for sampler in samplers:
        admit_every_kind(sampler, list(range(8)))
        sampler.admit(Admission(8, SamplingParams(1, temperature=0.0), (), 0))
    expected = samplers[0].sample(logits, places, places, positions)
    wishes = samplers[1].wishes(places)
    undefined = logits.clone()
    undefined[torch.from_numpy(wishes & RowWish.KEEP_LOGITS == 0)] = torch.nan
    picked = np.where(wishes & RowWish.PICK_TOKEN, logits.argmax(dim=-1).numpy(), 0)
    found = samplers[1].sample(undefined, places, places, positions, picked=picked)
    assert found == expected
    assert np.flatnonzero(wishes & RowWish.PICK_TOKEN).tolist() == [0, 8], "greedy, not adjusted"
    assert np.flatnonzero(undefined[:, 0].isnan()).tolist() == [8]


def test_a_picked_token_is_reported_with_its_log_probability() -> None:
    sampler = Sampler(2, 4, CPU, BruteForce())
    for slot, num_logprobs in enumerate([2, None]):
        sampling = SamplingParams(1, temperature=0.0, num_logprobs=num_logprobs)
        sampler.admit(Admission(slot, sampling, (), 0))
    places = np.arange(2)
    both = RowWish.PICK_TOKEN | RowWish.KEEP_LOGITS
    assert sampler.wishes(places).tolist() == [both, RowWish.PICK_TOKEN]
    logits = torch.tensor([[1.0, 5.0, 5.1, 0.0], [0.0, 1.0, 2.0, 3.0]])
    found = sampler.sample(logits, places, places, places, picked=np.array([2, 3]))
    assert [token.token_id for token in found] == [2, 3]
    assert found[0].logprobs is not None
    assert found[0].logprobs.top_ids[0] == 2
    assert found[1].logprobs is None
