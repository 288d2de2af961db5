import pytest
import torch

from engine.sampling.likeliest import likeliest


@pytest.mark.parametrize("vocab_size", [1, 7, 100, 4099, 49_152])
@pytest.mark.parametrize("k", [0, 1, 4, 128])
def test_it_finds_what_topk_finds(k: int, vocab_size: int) -> None:
    scores = torch.randn(5, vocab_size, generator=torch.Generator().manual_seed(k))
    expected = scores.topk(min(k, vocab_size), dim=-1)
    found = likeliest(scores, k)
    assert torch.equal(found.values, expected.values)
    assert torch.equal(found.ids, expected.indices)


def test_of_many_equal_values_it_finds_k_different_places() -> None:
    scores = torch.randn(3, 5000).mul(2).round()
    found = likeliest(scores, 50)
    assert torch.equal(found.values, scores.topk(50).values)
    assert torch.equal(scores.gather(-1, found.ids), found.values)
    assert all(len(set(ids)) == 50 for ids in found.ids.tolist())


def test_a_row_with_nan_or_without_any_number_shows_it() -> None:
    scores = torch.randn(2, 5000)
    scores[0, 4321] = torch.nan
    scores[1] = -torch.inf
    values = likeliest(scores, 2).values
    assert values[0, 0].isnan()
    assert (values[1] == -torch.inf).all()
