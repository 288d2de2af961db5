import numpy as np
import pytest
import torch
from torch import Tensor

from engine.messages import TokenLogprobs
from engine.sampling.logprobs import LOWEST_LOGPROB, token_logprobs

VOCAB_SIZE = 6000


def random_logits(num_rows: int) -> Tensor:
    """As high and as peaked as a language model's."""
    return torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(2)) * 4 + 25


def assert_close_to_log_softmax(
    reported: list[TokenLogprobs], logits: Tensor, chosen: list[int], num_top: int, error: float
) -> None:
    expected = torch.log_softmax(logits.double(), dim=-1)
    top = expected.topk(num_top)
    for row, one in enumerate(reported):
        assert one.logprob == pytest.approx(float(expected[row, chosen[row]]), abs=error)
        assert one.top_ids == top.indices[row].tolist()
        assert one.top_logprobs == pytest.approx(top.values[row].tolist(), abs=error)


@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_they_equal_the_log_softmax_of_torch(num_top: int) -> None:
    logits = random_logits(400)  # several pieces
    chosen = list(range(400))
    reported = token_logprobs(logits, np.array(chosen), num_top, None)
    assert_close_to_log_softmax(reported, logits, chosen, num_top, error=1e-5)


@pytest.mark.parametrize("num_top", [0, 5, 20])
def test_exact_logits_replace_coarse_ones_in_both_places(num_top: int) -> None:
    exact = random_logits(40)
    chosen = exact.argsort(descending=True)[torch.arange(40), torch.arange(40)].tolist()
    reported = token_logprobs(
        exact.bfloat16(), np.array(chosen), num_top, lambda ids: exact.gather(-1, ids)
    )
    assert_close_to_log_softmax(reported, exact, chosen, num_top, error=1e-2)
    coarse = torch.log_softmax(exact.bfloat16().float(), dim=-1)
    errors = (coarse - torch.log_softmax(exact, dim=-1))[torch.arange(40), chosen].abs()
    assert errors.max() > 3e-2, "coarse logits would do"


def test_impossible_tokens_have_a_finite_log_probability() -> None:
    logits = torch.tensor([[0.0, -torch.inf, -1e5]])
    for rescore in (None, lambda ids: torch.zeros_like(ids, dtype=torch.float32)):
        for dtype in (torch.float32, torch.bfloat16):
            reported = token_logprobs(logits.to(dtype), np.array([1]), 3, rescore)[0]
            assert reported.logprob == LOWEST_LOGPROB
            assert reported.top_logprobs[-1] == LOWEST_LOGPROB
    assert token_logprobs(torch.full((1, 3), torch.nan), np.array([1]), 0, None)[0] == (
        TokenLogprobs(LOWEST_LOGPROB, [], [])
    )


def test_more_than_the_vocabulary_gives_the_vocabulary() -> None:
    reported = token_logprobs(torch.tensor([[1.0, 3.0, 2.0]]), np.array([0]), 20, None)[0]
    assert reported.top_ids == [1, 2, 0]


def test_no_tokens_give_no_log_probabilities() -> None:
    assert token_logprobs(torch.zeros(0, 3), np.zeros(0, int), 2, None) == []


def test_a_long_prompt_is_rescored_in_pieces_of_all_rows() -> None:
    widths: list[int] = []
    exact = torch.randn(2000, 100)

    def rescore(ids: Tensor) -> Tensor:
        assert len(ids) == 2000
        widths.append(ids.shape[-1])
        return exact.gather(-1, ids)

    token_logprobs(exact.bfloat16(), np.zeros(2000, int), 5, rescore)
    assert len(widths) > 1
    assert max(widths) * 2000 <= 2**14
