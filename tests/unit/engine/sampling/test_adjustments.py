"""Bias, minimum length and penalties against transformers' processors and OpenAI's formula."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
)

from engine.messages import SamplingParams
from engine.sampling.adjustments import BatchAdjustments, SlotAdjustments
from engine.step import Admission
from tests.unit.engine.sampling.sampling_cases import CPU

VOCAB_SIZE = 40
token_ids = st.integers(0, VOCAB_SIZE - 1)


@st.composite
def requests(draw: st.DrawFn) -> tuple[SamplingParams, list[int], list[int]]:
    """Parameters, prompt and generated tokens."""
    sampling = SamplingParams(
        100,
        logit_bias=tuple(draw(st.dictionaries(token_ids, st.floats(-100, 100))).items()),
        stop_token_ids=tuple(draw(st.sets(token_ids, max_size=3))),
        min_tokens=draw(st.integers(0, 8)),
        repetition_penalty=draw(st.sampled_from([1.0, 0.5, 1.3])),
        presence_penalty=draw(st.sampled_from([0.0, -2.0, 0.7])),
        frequency_penalty=draw(st.sampled_from([0.0, -0.3, 1.9])),
    )
    past = st.lists(token_ids, max_size=12)
    return sampling, draw(past.filter(bool)), draw(past)


def reference(
    logits: Tensor, sampling: SamplingParams, prompt: list[int], generated: list[int]
) -> Tensor:
    processors = LogitsProcessorList()
    if sampling.logit_bias:
        biases = {(token_id,): bias for token_id, bias in sampling.logit_bias}
        processors.append(SequenceBiasLogitsProcessor(biases))
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if sampling.stop_token_ids and sampling.min_tokens:
        stop_ids = list(sampling.stop_token_ids)
        processors.append(
            MinNewTokensLengthLogitsProcessor(
                len(prompt), sampling.min_tokens, stop_ids, device="cpu"
            )
        )
    processed: Tensor = processors(torch.tensor([prompt + generated]), logits[None].clone())[0]
    for token_id in set(generated):
        processed[token_id] -= (
            sampling.presence_penalty + sampling.frequency_penalty * generated.count(token_id)
        )
    return processed


def batch(
    slots: list[SlotAdjustments | None], positions: list[int], vocab_size: int = VOCAB_SIZE
) -> BatchAdjustments:
    adjustments = BatchAdjustments.collect(slots, np.array(positions), vocab_size, CPU)
    assert adjustments is not None
    return adjustments


@settings(max_examples=60, deadline=None)
@given(st.lists(requests(), min_size=1, max_size=3), st.integers(0, 2**31))
def test_scores_equal_those_of_transformers(
    cases: list[tuple[SamplingParams, list[int], list[int]]], seed: int
) -> None:
    """Whether tokens were generated here, or before a preemption."""
    logits = torch.randn(len(cases), VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 5
    expected = [reference(row, *case) for row, case in zip(logits, cases, strict=True)]
    positions = [len(prompt) + len(generated) for _, prompt, generated in cases]
    uninterrupted, resumed = [], []
    for sampling, prompt, generated in cases:
        slot = SlotAdjustments(Admission(0, sampling, (), len(prompt), tuple(prompt)), VOCAB_SIZE)
        for token_id in generated:
            slot.remember(token_id)
        uninterrupted.append(slot)
        admission = Admission(0, sampling, (), len(prompt), tuple(prompt + generated))
        resumed.append(SlotAdjustments(admission, VOCAB_SIZE))
    for slots in (uninterrupted, resumed):
        adjusted = batch(list(slots), positions).applied_to(logits)
        torch.testing.assert_close(adjusted, torch.stack(expected), rtol=1e-6, atol=1e-5)


def test_only_the_entries_own_rows_change_and_the_logits_stay() -> None:
    biased = SlotAdjustments(Admission(0, SamplingParams(1, logit_bias=((3, 2.0),)), (), 1), 5)
    logits = torch.zeros(3, 5)
    adjusted = batch([None, biased, None], [4, 4, 4], vocab_size=5).applied_to(logits)
    assert adjusted.tolist() == [[0.0] * 5, [0.0, 0.0, 0.0, 2.0, 0.0], [0.0] * 5]
    assert not logits.any()


def test_no_row_with_an_entry_needs_no_batch() -> None:
    assert BatchAdjustments.collect([None, None], np.zeros(2, int), 5, CPU) is None
    assert not SlotAdjustments.are_needed(SamplingParams(1, stop_token_ids=(1,), top_k=3))
    assert not SlotAdjustments.are_needed(SamplingParams(1, min_tokens=3))


def test_a_row_that_masks_everything_keeps_its_scores() -> None:
    sampling = SamplingParams(1, stop_token_ids=(0, 1, 2), min_tokens=2)
    impossible, possible = (
        SlotAdjustments(Admission(0, one, (), 1), 3)
        for one in (sampling, SamplingParams(1, stop_token_ids=(0, 1), min_tokens=2))
    )
    logits = torch.tensor([[1.0, 2.0, 3.0]] * 2)
    adjusted = batch([impossible, possible], [1, 1], vocab_size=3).applied_to(logits)
    assert adjusted.tolist() == [[1.0, 2.0, 3.0], [-torch.inf, -torch.inf, 3.0]]


@pytest.mark.parametrize("repetition_penalty", [5e-324, 1e-38, 1e300])
@pytest.mark.parametrize("penalty", [-1e300, 2.0, 1e300])
def test_absurd_penalties_stay_finite(repetition_penalty: float, penalty: float) -> None:
    sampling = SamplingParams(
        1,
        repetition_penalty=repetition_penalty,
        presence_penalty=penalty,
        frequency_penalty=-penalty,
        logit_bias=((1, penalty),),
    )
    slot = SlotAdjustments(Admission(0, sampling, (), 1, (0, 1, 2, 2)), 4)
    adjusted = batch([slot], [4], vocab_size=4).applied_to(torch.tensor([[50.0, -50.0, 0.0, 1.0]]))
    assert adjusted.isfinite().all()


def test_more_tokens_than_first_held_are_counted() -> None:
    sampling = SamplingParams(1, frequency_penalty=1.0, logit_bias=((0, 5.0),))
    slot = SlotAdjustments(Admission(0, sampling, (), 1, (0,)), 1000)
    for token_id in [*range(1000), *range(500)]:
        slot.remember(token_id)
    adjusted = batch([slot], [1501], vocab_size=1000).applied_to(torch.zeros(1, 1000))
    assert adjusted[0].tolist() == [3.0] + [-2.0] * 499 + [-1.0] * 500
