import numpy as np
import pytest
import torch

from engine.errors import RunnerError
from engine.messages import SamplingParams
from engine.sampler import Sampler, uniform


def make_sampler(*params: SamplingParams) -> Sampler:
    sampler = Sampler(len(params))
    for slot, one in enumerate(params):
        sampler.admit(slot, one)
    return sampler


def draw_many(logits: torch.Tensor, params: SamplingParams, num_draws: int) -> list[int]:
    """Draws of one sequence at positions 0, 1, 2, …"""
    sampler = make_sampler(params)
    rows = logits.expand(num_draws, -1)
    draws = sampler.sample(rows, np.zeros(num_draws, np.int64), np.arange(num_draws))
    return [int(token_id) for token_id in draws]


def test_temperature_zero_takes_the_likeliest_token() -> None:
    sampler = make_sampler(*[SamplingParams(1, temperature=0.0)] * 2)
    logits = torch.tensor([[0.0, 3.0, 1.0], [9.0, 3.0, 1.0]])
    assert sampler.sample(logits, np.array([0, 1]), np.array([5, 5])).tolist() == [1, 0]


def test_a_tie_of_coarse_logits_is_decided_by_the_exact_ones() -> None:
    sampler = make_sampler(SamplingParams(1, temperature=0.0))
    exact = torch.tensor([[25.26, 1.0, 25.36, 25.30]])
    coarse = exact.bfloat16()
    assert coarse[0, 0] == coarse[0, 3], "the test needs a tie"
    args = (coarse, np.array([0]), np.array([5]))
    assert sampler.sample(*args, rescore=lambda ids: exact.gather(-1, ids)).tolist() == [2]


def test_draws_follow_the_distribution_of_the_temperature() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0, -torch.inf])
    draws = draw_many(logits, SamplingParams(1, temperature=2.0, seed=3), 20_000)
    shares = np.bincount(draws, minlength=4) / len(draws)
    np.testing.assert_allclose(shares, torch.softmax(logits / 2, 0).numpy(), atol=0.015)
    assert shares[3] == 0


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([0.1, 0.5, 0.15, 0.25]).log()
    draws = draw_many(logits, SamplingParams(1, top_p=0.7, seed=1), 10_000)
    shares = np.bincount(draws, minlength=4) / len(draws)
    np.testing.assert_allclose(shares, [0, 2 / 3, 0, 1 / 3], atol=0.02)


def test_top_p_zero_is_greedy_and_tiny_temperatures_stay_finite() -> None:
    logits = torch.randn(1000) * 50
    best = int(logits.argmax())
    assert set(draw_many(logits, SamplingParams(1, top_p=0.0), 50)) == {best}
    assert set(draw_many(logits, SamplingParams(1, temperature=1e-6), 50)) == {best}


def test_a_flat_nucleus_larger_than_the_first_look_is_found() -> None:
    logits = torch.linspace(0, 0.1, 5000)
    draws = draw_many(logits, SamplingParams(1, top_p=0.5, seed=9), 5000)
    probabilities = torch.softmax(logits.double(), 0)
    nucleus = probabilities.flip(0).cumsum(0) < 0.5
    smallest = 5000 - int(nucleus.sum()) - 1
    assert smallest <= min(draws) < smallest + 50
    assert max(draws) > 4950


@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_a_draw_depends_only_on_its_own_row_seed_and_position(top_p: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 3000, generator=generator).bfloat16()
    params = [SamplingParams(1, temperature=0.5 + s / 8, top_p=top_p, seed=s) for s in range(7)]
    sampler = make_sampler(*params, SamplingParams(1, temperature=0.0))
    positions = np.arange(8) * 11
    together = sampler.sample(logits, np.arange(8), positions).tolist()
    order = np.array([5, 0, 7, 3])
    assert sampler.sample(logits[order], order, positions[order]).tolist() == [
        together[row] for row in order
    ]
    alone = [
        int(sampler.sample(logits[row : row + 1], np.array([row]), positions[row : row + 1])[0])
        for row in range(8)
    ]
    assert alone == together


def test_seeds_and_positions_give_independent_uniform_numbers() -> None:
    by_position = uniform(np.full(4096, 7, np.uint64), np.arange(4096))
    by_seed = uniform(np.arange(4096, dtype=np.uint64), np.full(4096, 7))
    largest = uniform(np.array([2**64 - 1], np.uint64), np.array([2**40]))
    for numbers in (by_position, by_seed):
        assert ((numbers >= 0) & (numbers < 1)).all()
        counts, _ = np.histogram(numbers, bins=16, range=(0, 1))
        assert abs(counts - 256).max() < 80
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.05
    assert abs(np.corrcoef(by_position, by_seed)[0, 1]) < 0.05
    assert 0 <= largest[0] < 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("row", [[0.0, torch.nan], [0.0, torch.inf], [-torch.inf, -torch.inf]])
def test_logits_that_are_not_finite_fail_the_step(row: list[float], temperature: float) -> None:
    sampler = make_sampler(*[SamplingParams(1, temperature=temperature)] * 2)
    logits = torch.tensor([[0.0, 1.0], row])
    with pytest.raises(RunnerError, match="NaN or infinite logits for 1 of 2"):
        sampler.sample(logits, np.array([0, 1]), np.array([1, 1]))


def test_a_slot_forgets_the_sequence_before() -> None:
    sampler = make_sampler(SamplingParams(1, temperature=5.0, seed=1))
    sampler.admit(0, SamplingParams(1, temperature=0.0))
    logits = torch.tensor([[0.0, 0.1]]).expand(50, 2)
    assert set(sampler.sample(logits, np.zeros(50, np.int64), np.arange(50)).tolist()) == {1}
