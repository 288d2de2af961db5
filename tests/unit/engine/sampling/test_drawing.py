"""Filters against transformers' warpers, and the fast way against its slow twin."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from engine.sampling.drawing import DrawParams, draw_filtered, draw_unfiltered, filtered_weights
from tests.unit.engine.sampling.sampling_cases import CPU

Filters = tuple[float, int, float, float]
"""Temperature, top-k (at most the vocabulary), top-p, min-p."""

filters = st.tuples(
    st.sampled_from([0.05, 0.7, 1.0, 3.0]),
    st.sampled_from([1, 2, 50, 128, 300, 1000]),
    st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.001, 0.1, 1.0]),
)


def random_logits(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3


def draw_params(rows: list[Filters], uniforms: list[float]) -> DrawParams:
    columns = [(*row, uniform) for row, uniform in zip(rows, uniforms, strict=True)]
    return DrawParams.on_device(np.array(columns, dtype=np.float64).T.copy(), CPU)


def reference(logits: Tensor, row: Filters) -> Tensor:
    temperature, top_k, top_p, min_p = row
    warpers = LogitsProcessorList(
        [
            TemperatureLogitsWarper(temperature),
            TopKLogitsWarper(top_k),
            TopPLogitsWarper(top_p),
            MinPLogitsWarper(min_p),
        ]
    )
    # In double, so that only this side's rounding counts.
    processed: Tensor = warpers(torch.zeros(1, 0), logits[None].double())
    return processed.softmax(dim=-1)[0]


@settings(max_examples=60, deadline=None)
@given(filters, st.integers(0, 2**31))
def test_the_filtered_distribution_equals_transformers(row: Filters, seed: int) -> None:
    logits = random_logits(1000, seed=seed)
    weights = filtered_weights(logits[None], draw_params([row], [0.0]))[0]
    kept = weights / weights.sum()
    expected = reference(logits, row)
    is_notable = torch.maximum(kept, expected) > 1e-9  # the smallest are 0 in float32
    differs = is_notable & ((kept > 0) != (expected > 0))
    assert kept[differs].sum() + expected[differs].sum() < 2e-3, "one token at the border"
    assert int(differs.sum()) <= 1
    torch.testing.assert_close(kept[~differs], expected[~differs], rtol=3e-3, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(filters, st.floats(0, 1, exclude_max=True)), min_size=1, max_size=8),
    st.integers(0, 2**31),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
@example([((1.0, 1000, 0.9, 0.0), 1 - 2**-53)], 1, torch.float32)
def test_the_fast_way_draws_what_the_slow_twin_gives(
    cases: list[tuple[Filters, float]], seed: int, dtype: torch.dtype
) -> None:
    """Candidates that hold all kept tokens, rows that need more, ties: each draw is the token where
    the exact cumulative distribution passes the random number."""
    logits = random_logits(len(cases), 1000, seed=seed).to(dtype).float()
    params = draw_params([row for row, _ in cases], [uniform for _, uniform in cases])
    tokens = draw_filtered(logits, params)[:, None]
    weights = filtered_weights(logits, params)
    weights /= weights.sum(dim=-1, keepdim=True)
    cumulative = weights.cumsum(dim=-1)
    widths = weights.gather(-1, tokens)
    assert (widths > 0).all()
    assert (cumulative.gather(-1, tokens) >= params.uniform - 1e-6).all()
    assert (cumulative.gather(-1, tokens) - widths <= params.uniform + 1e-6).all()


def test_a_draw_is_the_same_beside_any_other_row() -> None:
    rows: list[Filters] = [
        (1.0, 20, 0.9, 0.0),
        (1.0, 1000, 0.9, 0.0),  # needs whole rows
        (2.0, 400, 0.99, 0.0),
        (0.7, 1000, 1.0, 0.05),
    ]
    logits = random_logits(4, 1000).bfloat16().float()
    uniforms = np.random.default_rng(1).random(4).tolist()
    together = draw_filtered(logits, draw_params(rows, uniforms)).tolist()
    for index, row in enumerate(rows):
        alone = draw_filtered(logits[[index]], draw_params([row], [uniforms[index]]))
        assert alone.tolist() == [together[index]]


@pytest.mark.parametrize("row", [(1.0, 1, 1.0, 0.0), (1.0, 6, 0.0, 0.0), (1.0, 6, 1.0, 1.0)])
def test_all_tokens_that_tie_with_the_last_one_kept_stay(row: Filters) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0, 2.0]])
    weights = filtered_weights(logits, draw_params([row], [0.0]))
    assert weights[0].nonzero().flatten().tolist() == [1, 2, 4]


def test_a_uniform_number_close_to_one_draws_a_possible_token() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -torch.inf]])
    params = draw_params([(0.3, 4, 1.0, 0.0)], [1 - 2**-53])
    assert draw_unfiltered(logits, params).tolist() == [2]
    assert draw_filtered(logits, params).tolist() == [2]
