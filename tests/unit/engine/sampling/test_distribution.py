"""20,000 draws for each option: a chi-square test against torch's softmax of the logits that
transformers' processors give. Seeds are fixed, so the outcome is, too."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.messages import SamplingParams
from engine.sampling.sampler import Sampler
from engine.step import Admission
from tests.unit.engine.sampling.sampling_cases import CPU, draw_many

NUM_DRAWS = 20_000
VOCAB_SIZE = 300
NUM_PROMPT_TOKENS = 30_000
"""Beyond all positions, so that no draw counts as late enough for stop tokens."""
PROMPT = [*range(0, 40, 2)] * (NUM_PROMPT_TOKENS // 20)
GENERATED = [3, 4, 4, 5, 5, 5]


Processor = Callable[[Tensor, Tensor], Tensor]
"""Past token ids and scores to scores, each [1, …]."""


class OpenAiPenalties:
    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        counts = torch.bincount(input_ids[0, NUM_PROMPT_TOKENS:], minlength=VOCAB_SIZE)
        return scores - self._presence * (counts > 0) - self._frequency * counts


REPETITION = RepetitionPenaltyLogitsProcessor(1.4)
BIAS = SequenceBiasLogitsProcessor({(7,): 2.5, (8,): -100.0})
NO_STOP = MinNewTokensLengthLogitsProcessor(NUM_PROMPT_TOKENS, 9, [3, 5], device="cpu")
COOL = TemperatureLogitsWarper(0.8)
CASES: dict[str, tuple[SamplingParams, list[Processor]]] = {
    "temperature": (SamplingParams(1, temperature=0.8), [COOL]),
    "top_k": (SamplingParams(1, top_k=20), [TopKLogitsWarper(20)]),
    "large_top_k": (SamplingParams(1, top_k=200), [TopKLogitsWarper(200)]),
    "top_p": (SamplingParams(1, top_p=0.8), [TopPLogitsWarper(0.8)]),
    "wide_top_p": (
        SamplingParams(1, temperature=3.0, top_p=0.95),
        [TemperatureLogitsWarper(3.0), TopPLogitsWarper(0.95)],
    ),
    "min_p": (SamplingParams(1, min_p=0.03), [MinPLogitsWarper(0.03)]),
    "repetition_penalty": (SamplingParams(1, repetition_penalty=1.4), [REPETITION]),
    "presence_penalty": (SamplingParams(1, presence_penalty=1.2), [OpenAiPenalties(1.2, 0)]),
    "frequency_penalty": (SamplingParams(1, frequency_penalty=0.6), [OpenAiPenalties(0, 0.6)]),
    "logit_bias": (SamplingParams(1, logit_bias=((7, 2.5), (8, -100.0))), [BIAS]),
    "min_tokens": (SamplingParams(1, min_tokens=9, stop_token_ids=(3, 5)), [NO_STOP]),
    "all": (
        SamplingParams(
            1,
            temperature=0.8,
            top_k=40,
            top_p=0.9,
            min_p=0.02,
            repetition_penalty=1.4,
            presence_penalty=-0.5,
            frequency_penalty=0.3,
            logit_bias=((7, 2.5), (8, -100.0)),
            min_tokens=9,
            stop_token_ids=(3, 5),
        ),
        [
            *(BIAS, REPETITION, NO_STOP, OpenAiPenalties(-0.5, 0.3), COOL),
            *(TopKLogitsWarper(40), TopPLogitsWarper(0.9), MinPLogitsWarper(0.02)),
        ],
    ),
}


def chi_square_p_value(counts: Tensor, probabilities: Tensor) -> float:
    """Of ``counts``, if they were drawn with ``probabilities``; tokens expected fewer than 5 times
    count as one."""
    expected = probabilities.double() * counts.sum()
    is_rare = expected < 5
    observed = torch.cat([counts[~is_rare], counts[is_rare].sum()[None]]).double()
    expected = torch.cat([expected[~is_rare], expected[is_rare].sum()[None]])
    observed, expected = observed[expected > 0], expected[expected > 0]
    statistic = ((observed - expected) ** 2 / expected).sum()
    half_freedom = torch.tensor((len(expected) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_freedom, statistic / 2))


@pytest.mark.parametrize("name", CASES)
def test_draws_follow_the_processed_distribution(name: str) -> None:
    sampling, processors = CASES[name]
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(4)) * 2
    sampler = Sampler(1, VOCAB_SIZE, CPU)
    sampler.admit(Admission(0, sampling, (), NUM_PROMPT_TOKENS, tuple(PROMPT + GENERATED)))
    drawn = torch.bincount(
        torch.tensor(draw_many(sampler, logits, NUM_DRAWS)), minlength=VOCAB_SIZE
    )
    past = torch.tensor([PROMPT + GENERATED])
    processed = LogitsProcessorList(processors)(past, logits[None].clone())[0]
    probabilities = torch.softmax(processed, dim=-1)
    assert not drawn[probabilities == 0].any()
    assert chi_square_p_value(drawn, probabilities) > 1e-4


def test_the_chi_square_test_notices_a_slightly_wrong_distribution() -> None:
    logits = torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(4)) * 2
    right, wrong = (torch.softmax(logits / temperature, dim=-1) for temperature in (1.0, 1.05))
    draws = right.multinomial(NUM_DRAWS, True, generator=torch.Generator().manual_seed(1))
    counts = torch.bincount(draws, minlength=VOCAB_SIZE)
    assert chi_square_p_value(counts, right) > 1e-4 > chi_square_p_value(counts, wrong)
