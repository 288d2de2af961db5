import numpy as np
import pytest
import torch
from torch import Tensor

from engine.messages import SamplingParams
from engine.sampling.sampler import Sampler
from engine.step import Admission
from tests.unit.engine.sampling.sampling_cases import CPU, draw_many, make_sampler, sample

EVERY_KIND = [
    SamplingParams(1, temperature=0.0, num_logprobs=2),
    SamplingParams(1, temperature=0.7, seed=1),
    SamplingParams(1, top_p=0.8, seed=2, num_logprobs=0),
    SamplingParams(1, temperature=3.0, top_p=0.95, seed=2**64 - 1),
    SamplingParams(1, top_k=30, min_p=0.01, seed=4, num_logprobs=5),
    SamplingParams(1, top_k=2000, top_p=0.99, repetition_penalty=1.2, seed=5),
    SamplingParams(1, temperature=0.0, logit_bias=((17, 2.0),), frequency_penalty=1.0),
    SamplingParams(1, presence_penalty=0.4, seed=7, min_tokens=90, stop_token_ids=(3,)),
]


def random_logits(num_rows: int, vocab_size: int = 3000) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(0)) * 3


def admit_every_kind(sampler: Sampler, slots: list[int]) -> None:
    """Kind i in slot slots[i]."""
    for slot, params in zip(slots, EVERY_KIND, strict=True):
        sampler.admit(Admission(slot, params, (), 2, (11, 17, 17)))


def test_temperature_zero_takes_the_likeliest_token_and_of_equals_the_first() -> None:
    sampler = make_sampler(*[SamplingParams(1, temperature=0.0)] * 3, vocab_size=3)
    logits = torch.tensor([[0.0, 3.0, 1.0], [9.0, 3.0, 1.0], [1.0, 2.0, 2.0]])
    assert [token.token_id for token in sample(sampler, logits)] == [1, 0, 1]


def test_a_tie_of_coarse_logits_is_decided_by_the_exact_ones() -> None:
    sampler = make_sampler(SamplingParams(1, temperature=0.0), vocab_size=4)
    exact = torch.tensor([[25.26, 1.0, 25.36, 25.30]])
    coarse = exact.bfloat16()
    assert coarse[0, 0] == coarse[0, 3], "the test needs a tie"
    found = sample(sampler, coarse, rescore=lambda ids: exact.gather(-1, ids))
    assert found[0].token_id == 2


def test_bias_and_penalties_count_for_exact_logits_too() -> None:
    exact = torch.tensor([[25.26, 1.0, 25.36, 25.30]])
    bias = ((0, 0.05), (2, -5.0))  # 25.31 beats 25.30, but neither is told apart when coarse
    sampler = make_sampler(SamplingParams(1, temperature=0.0, logit_bias=bias), vocab_size=4)
    found = sample(sampler, exact.bfloat16(), rescore=lambda ids: exact.gather(-1, ids))
    assert found[0].token_id == 0


def test_extreme_parameters_draw_the_likeliest_token() -> None:
    logits = torch.randn(1000) * 50
    for params in (
        SamplingParams(1, top_p=1e-9),
        SamplingParams(1, min_p=1.0),
        SamplingParams(1, top_k=1),
        SamplingParams(1, temperature=1e-6),
        SamplingParams(1, temperature=1e-300),
    ):
        draws = draw_many(make_sampler(params, vocab_size=1000), logits, 50)
        assert set(draws) == {int(logits.argmax())}


def test_filters_that_keep_everything_draw_as_if_there_were_none() -> None:
    logits = random_logits(1)[0]
    plain, wide = (
        draw_many(make_sampler(params, vocab_size=3000), logits, 200)
        for params in (SamplingParams(1, seed=6), SamplingParams(1, seed=6, top_k=10**9))
    )
    assert wide == plain


def test_an_enormous_temperature_is_uniform_over_possible_tokens() -> None:
    logits = torch.tensor([5.0, -torch.inf, 0.0])
    draws = draw_many(make_sampler(SamplingParams(1, temperature=1e300), vocab_size=3), logits, 999)
    assert 400 < draws.count(0) < 600
    assert draws.count(1) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_token_depends_on_its_own_row_parameters_seed_and_position(dtype: torch.dtype) -> None:
    """Not on the batch, its order, the slots, nor on who shares the row."""
    logits = random_logits(8).to(dtype)
    positions = np.arange(8) * 11 + 3
    places = np.arange(8)
    together, elsewhere, alone = (Sampler(20, 3000, CPU) for _ in range(3))
    admit_every_kind(together, list(range(8)))
    expected = together.sample(logits, places, places, positions)

    order = np.array([5, 0, 7, 3, 6, 1, 2, 4])
    slots = 19 - 2 * places
    admit_every_kind(elsewhere, slots.tolist())
    shuffled = elsewhere.sample(logits.flip(0), 7 - order, slots[order], positions[order])
    assert [(token.token_id, token.slot) for token in shuffled] == [
        (expected[kind].token_id, slots[kind]) for kind in order
    ]

    admit_every_kind(alone, list(range(8)))
    for kind in range(8):
        one = alone.sample(logits, places[[kind]], places[[kind]], positions[[kind]])
        assert one[0].token_id == expected[kind].token_id


def test_samples_of_one_row_part_by_their_seeds() -> None:
    params = [SamplingParams(1, seed=seed, num_logprobs=1) for seed in range(8)]
    sampler = make_sampler(*params, vocab_size=3000)
    logits = random_logits(2)
    places = np.arange(8)
    forks = sampler.sample(logits, np.ones(8, int), places, np.full(8, 40))
    repeated = sampler.sample(logits[1].expand(8, -1), places, places, np.full(8, 40))
    assert forks == repeated
    assert len({token.token_id for token in forks}) > 4


def test_rescoring_reaches_samples_that_share_a_row() -> None:
    exact = torch.tensor([[0.0, 1.0, 0.0], [25.30, 25.26, 1.0]])
    greedy = SamplingParams(1, temperature=0.0, num_logprobs=1)
    biased = SamplingParams(1, temperature=0.0, num_logprobs=1, logit_bias=((1, 0.1),))
    sampler = make_sampler(greedy, biased, greedy, vocab_size=3)
    found = sampler.sample(
        exact.bfloat16(),
        np.array([1, 1, 0]),
        np.arange(3),
        np.full(3, 9),
        lambda ids: exact.gather(-1, ids),
    )
    assert [token.token_id for token in found] == [0, 1, 1]
    expected = torch.log_softmax(exact, dim=-1)
    for token, row in zip(found, (1, 1, 0), strict=True):
        assert token.logprobs is not None
        assert token.logprobs.logprob == pytest.approx(
            float(expected[row, token.token_id]), abs=1e-5
        )


@pytest.mark.parametrize("params", EVERY_KIND[5:])
def test_penalties_after_a_preemption_equal_the_uninterrupted_run(params: SamplingParams) -> None:
    prompt, logits = [5, 9, 9], random_logits(30)[:, :200]
    uninterrupted = Sampler(1, 200, CPU)
    uninterrupted.admit(Admission(0, params, (), 3, tuple(prompt)))
    generated: list[int] = []
    for step in range(30):
        preempted = Sampler(2, 200, CPU)
        preempted.admit(Admission(1, params, (), 3, tuple(prompt + generated)))
        arguments = logits, np.array([step])
        position = np.array([3 + step])
        token = uninterrupted.sample(*arguments, np.array([0]), position)[0].token_id
        assert preempted.sample(*arguments, np.array([1]), position)[0].token_id == token
        generated.append(token)


def test_stop_tokens_come_after_min_tokens_and_not_before() -> None:
    params = SamplingParams(9, temperature=0.0, min_tokens=2, stop_token_ids=(1,))
    sampler = Sampler(1, 3, CPU)
    sampler.admit(Admission(0, params, (), num_prompt_tokens=10))
    logits = torch.tensor([[0.0, 9.0, 1.0]])
    found = [sample(sampler, logits, position=position)[0].token_id for position in range(10, 14)]
    assert found == [2, 2, 1, 1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_masking_every_token_still_draws_one(temperature: float) -> None:
    params = SamplingParams(1, temperature=temperature, min_tokens=9, stop_token_ids=(0, 1, 2))
    exact = torch.tensor([[0.0, 40.0, 1.0]])
    for dtype in (torch.float32, torch.bfloat16):
        sampler = make_sampler(params, vocab_size=3)
        found = sample(sampler, exact.to(dtype), rescore=lambda ids: exact.gather(-1, ids))
        assert found[0].token_id == 1


@pytest.mark.parametrize(
    "bad_row", [[0.0, torch.nan, 1.0], [0.0, torch.inf, 1.0], [-torch.inf] * 3, [torch.nan] * 3]
)
@pytest.mark.parametrize("params", [*EVERY_KIND[:4], SamplingParams(1, logit_bias=((2, -100.0),))])
def test_logits_that_are_not_finite_spoil_their_own_row_only(
    params: SamplingParams, bad_row: list[float]
) -> None:
    good_row = [0.0, 5.0, 1.0]
    places = np.arange(3)
    alone = make_sampler(*[params] * 3, vocab_size=3)
    expected = alone.sample(torch.tensor([good_row] * 3), places, places, places)
    sampler = make_sampler(*[params] * 3, vocab_size=3)
    logits = torch.tensor([good_row, bad_row, good_row])
    found = sampler.sample(logits, places, places, places)
    assert found[1].token_id == -1
    assert found[1].logprobs is None
    assert [found[0], found[2]] == [expected[0], expected[2]]


def test_log_probabilities_are_the_models_own() -> None:
    """As many as each sequence asked for, whatever its bias, penalties and temperature."""
    logits = random_logits(8)
    sampler = Sampler(8, 3000, CPU)
    admit_every_kind(sampler, list(range(8)))
    expected = torch.log_softmax(logits, dim=-1)
    for row, (token, params) in enumerate(zip(sample(sampler, logits), EVERY_KIND, strict=True)):
        assert (token.logprobs is None) == (params.num_logprobs is None)
        if token.logprobs is not None:
            top = expected[row].topk(params.num_logprobs or 0)
            assert token.logprobs.top_ids == top.indices.tolist()
            assert token.logprobs.top_logprobs == pytest.approx(top.values.tolist(), abs=1e-5)
            chosen = float(expected[row, token.token_id])
            assert token.logprobs.logprob == pytest.approx(chosen, abs=1e-5)


def test_a_slot_forgets_the_sequence_before() -> None:
    sampler = make_sampler(
        SamplingParams(1, temperature=5.0, logit_bias=((0, 99.0),), num_logprobs=1), vocab_size=2
    )
    sampler.admit(Admission(0, SamplingParams(1, temperature=0.0), (), 0))
    found = sample(sampler, torch.tensor([[0.0, 0.1]]))[0]
    assert found.token_id == 1
    assert found.logprobs is None


def test_a_released_slot_counts_no_more_tokens() -> None:
    sampler = make_sampler(SamplingParams(1, frequency_penalty=1.0), vocab_size=2)
    sampler.release(0)
    sampler.release(0)
    assert sample(sampler, torch.tensor([[-torch.inf, 0.0]]))[0].token_id == 1


def test_large_batches_are_drawn_as_small_ones_are() -> None:
    """In several pieces of every kind."""
    vocab_size, num_rows = 49_152, 90
    logits = random_logits(4, vocab_size)
    rows = np.arange(num_rows) % 4
    params = [EVERY_KIND[index % 4] for index in range(num_rows)]
    sampler = make_sampler(*params, vocab_size=vocab_size)
    found = sampler.sample(logits, rows, np.arange(num_rows), np.full(num_rows, 8))
    few = sampler.sample(logits, rows[-4:], np.arange(num_rows)[-4:], np.full(4, 8))
    assert found[-4:] == few
    assert len({(token.token_id, index % 4) for index, token in enumerate(found)}) == 4


def test_no_samples_are_no_tokens() -> None:
    nothing = np.zeros(0, int)
    assert make_sampler(vocab_size=3).sample(torch.zeros(2, 3), nothing, nothing, nothing) == []
