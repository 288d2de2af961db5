"""The compiled ways to choose tokens against torch's and against brute force."""

import platform

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.errors import CompiledStepUnavailable
from engine.native.sampling import NativeSampling
from engine.native.selection import library_opener
from engine.sampling.drawing import DrawParams, draw_filtered, filtered_weights
from engine.sampling.kernels import MAX_NEAR

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

CPU = torch.device("cpu")
VOCAB_SIZES = [3, 16, 17, 255, 256, 257, 1000, 5000]

params = st.tuples(
    st.sampled_from([0.05, 0.7, 1.0, 3.0]),
    st.sampled_from([1, 2, 50, 128, 300, 10**6]),
    st.sampled_from([0.0, 1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0.0, 0.001, 0.1, 1.0]),
    st.floats(0, 1, exclude_max=True),
)


@pytest.fixture(scope="module")
def kernels_of(tmp_path_factory: pytest.TempPathFactory) -> dict[int, NativeSampling]:
    try:
        calls = library_opener(tmp_path_factory.mktemp("library"))()
    except CompiledStepUnavailable as error:
        pytest.skip(f"no compiled step on this {platform.machine()}: {error}")
    return {
        size: NativeSampling(calls, vocab_size=size, num_threads=2, max_samples=4)
        for size in [*VOCAB_SIZES, 49_152]
    }


def random_logits(num_rows: int, vocab_size: int, seed: int, scale: float) -> Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * scale


@settings(max_examples=150, deadline=None)
@given(
    st.lists(params, min_size=1, max_size=6),
    st.sampled_from(VOCAB_SIZES),
    st.integers(0, 2**31),
    st.sampled_from([0.1, 1.0, 3.0, 10.0]),
    st.booleans(),
)
def test_a_draw_is_the_token_that_torch_draws(
    kernels_of: dict[int, NativeSampling],
    cases: list[tuple[float, int, float, float, float]],
    vocab_size: int,
    seed: int,
    scale: float,
    has_ties: bool,
) -> None:
    """Unless the random number falls where the cumulative distribution goes on, within rounding."""
    scores = random_logits(len(cases), vocab_size, seed, scale)
    if has_ties:
        scores = scores.bfloat16().float()
        scores[:, ::3] = -torch.inf
        scores[:, -1] = 0.5
    columns = np.array(cases, dtype=np.float64).T.copy()
    columns[1] = columns[1].clip(max=vocab_size)
    shifts = (-1e-6, 0.0, 1e-6)
    allowed = []
    for shift in shifts:
        columns_near = columns.copy()
        columns_near[4] = (columns[4] + shift).clip(0, 1 - 2**-53)
        allowed.append(draw_filtered(scores, DrawParams.on_device(columns_near, CPU)).tolist())
    drawn = kernels_of[vocab_size].draw(scores, np.arange(len(cases)), columns).tolist()
    weights = filtered_weights(scores, DrawParams.on_device(columns, CPU))
    for row, (token, choices) in enumerate(zip(drawn, zip(*allowed, strict=True), strict=True)):
        # Between the choices lie tokens of hardly any weight.
        is_between = min(choices) < token < max(choices) and weights[row, token] > 0
        assert token in choices or is_between


def test_fixed_draws_from_wide_rows_are_torchs(kernels_of: dict[int, NativeSampling]) -> None:
    """Whatever the filter, also from rows that are shared and in any order."""
    scores = random_logits(4, 49_152, 1, 2.5)
    filters = [(0.7, 49_152, 0.95, 0.0), (1.0, 49_152, 1.0, 0.0), (1.0, 40, 0.9, 0.0)]
    filters += [(1.0, 3000, 1.0, 0.0), (1.3, 49_152, 0.999, 0.01)]
    rows = np.array([3, 0, 0, 2, 1])
    random = np.random.default_rng(4).random(5)
    columns = np.array([(*row, u) for row, u in zip(filters, random, strict=True)]).T.copy()
    drawn = kernels_of[49_152].draw(scores, rows, columns).tolist()
    twin = draw_filtered(scores[torch.from_numpy(rows)], DrawParams.on_device(columns, CPU))
    assert drawn == twin.tolist()
    alone = [
        kernels_of[49_152].draw(scores, rows[[one]], columns[:, [one]].copy())[0]
        for one in range(5)
    ]
    assert alone == drawn, "a draw depends on its own row alone"


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(VOCAB_SIZES), st.integers(0, 2**31), st.floats(0, 0.25, width=32))
def test_finds_all_that_lie_within_the_margin(
    kernels_of: dict[int, NativeSampling], vocab_size: int, seed: int, margin: float
) -> None:
    logits = random_logits(5, vocab_size, seed, 3.0)
    margins = np.full(5, margin, dtype=np.float32)
    near = kernels_of[vocab_size].find_near_largest(logits, np.arange(5), margins)
    for row, ids, num_found in zip(logits.numpy(), near.ids, near.num_found, strict=True):
        expected = np.flatnonzero(row >= row.max() - np.float32(margin)).tolist()
        assert int(row.argmax()) in ids
        if len(expected) <= MAX_NEAR:
            assert ids[:num_found].tolist() == expected
            assert set(ids[num_found:].tolist()) <= {expected[-1]}


def test_of_more_equals_than_there_are_places_the_first_stay(
    kernels_of: dict[int, NativeSampling],
) -> None:
    logits = torch.zeros(1, 1000)
    logits[0, 100:400] = 1.0
    margins = np.full(1, 0.5, dtype=np.float32)
    near = kernels_of[1000].find_near_largest(logits, np.zeros(1, int), margins)
    assert near.ids[0].tolist() == list(range(100, 100 + MAX_NEAR))


def test_rows_that_are_not_finite_yield_nothing(kernels_of: dict[int, NativeSampling]) -> None:
    logits = random_logits(5, 257, 3, 1.0)
    logits[1, 256], logits[2, 7], logits[3] = torch.nan, torch.inf, -torch.inf
    columns = np.array([(1.0, 257, 1.0, 0.0, 0.5)] * 5).T.copy()
    kernels, rows = kernels_of[257], np.arange(5)
    assert (kernels.draw(logits, rows, columns) < 0).tolist() == [False, True, True, True, False]
    near = kernels.find_near_largest(logits, rows, np.zeros(5, dtype=np.float32))
    assert near.num_found.tolist() == [1, 0, 0, 0, 1]


@pytest.mark.parametrize("margin", [np.inf, np.nan, 3e38])
def test_a_margin_that_tells_nothing_leaves_it_to_the_logits(
    kernels_of: dict[int, NativeSampling], margin: float
) -> None:
    logits = random_logits(3, 1000, 4, 1.0)
    logits[1] = 0.0
    margins = np.full(3, margin, dtype=np.float32)
    found = kernels_of[1000].find_near_largest(logits, np.arange(3), margins)
    for row, (ids, num_found) in enumerate(zip(found.ids, found.num_found, strict=True)):
        assert int(logits[row].argmax()) in ids[:num_found]
