"""The compiled head that chooses tokens while it computes logits, against its twin in two parts."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from engine.layers.greedy_head import RowWish
from engine.native.head import PanelHead
from engine.native.library import Linear, StepLibrary
from engine.native.pack_file import PackedWeights, lay_out
from engine.native.packing import PanelShape, pack_panels
from engine.native.sampling import NativeSampling
from engine.sampling.greedy import pick_among_near
from tests.integration.model_steps import compiled_library

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

HIDDEN_SIZE = 48
PICK, KEEP = RowWish.PICK_TOKEN, RowWish.KEEP_LOGITS


class Heads:
    """One head, its twin, and what both are made of."""

    def __init__(self, calls: StepLibrary, table: Tensor, *, is_exact: bool = False) -> None:
        self.table = table
        vocab_size = len(table)
        self._panels = pack_panels(PanelShape(HIDDEN_SIZE, (vocab_size,)), [table])
        fields = Linear(
            data=self._panels.data_ptr(), in_features=HIDDEN_SIZE, out_features=vocab_size
        )
        self.head = PanelHead(
            fields,
            PackedWeights(lay_out({}, {}), np.zeros(0, np.uint8), is_mapped=False),  # held here
            calls,
            table=None if is_exact else table,
            num_threads=2,
            max_rows=4,
        )
        self._kernels = NativeSampling(calls, vocab_size=vocab_size, num_threads=2, max_samples=4)
        self.largest_row_norm = 0.0 if is_exact else float(table.float().norm(dim=-1).max())

    def twin(self, normed: Tensor, *, is_exact: bool = False) -> tuple[Tensor, list[int]]:
        """All logits, and the likeliest token of each row by `OutputHead.margins`."""
        logits = self.head(normed.bfloat16()).clone()
        rounding = (normed - normed.bfloat16()).norm(dim=-1)
        summing = normed.norm(dim=-1) * (2 * HIDDEN_SIZE * 2.0**-24)
        margins = (rounding + summing) * (2 * self.largest_row_norm)
        rows = np.arange(len(normed))
        near = self._kernels.find_near_largest(logits, rows, margins.numpy())

        def rescore(ids: Tensor) -> Tensor:
            return torch.bmm(self.table[ids].float(), normed.unsqueeze(-1)).squeeze(-1)

        return logits, pick_among_near(near, None if is_exact else rescore).tolist()


@pytest.fixture(scope="module")
def calls() -> StepLibrary:
    return compiled_library()


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@settings(max_examples=80, deadline=None)
@given(
    num_rows=st.sampled_from([1, 2, 15, 16, 17, 40, 97, 200]),
    vocab_size=st.sampled_from([3, 16, 17, 32, 33, 700, 5000]),
    seed=st.integers(0, 2**31),
    is_exact=st.booleans(),
    num_distinct=st.sampled_from([1, 2, 30, 10_000]),
)
def test_it_chooses_and_keeps_what_its_twin_does(
    calls: StepLibrary,
    num_rows: int,
    vocab_size: int,
    seed: int,
    num_distinct: int,
    *,
    is_exact: bool,
) -> None:
    """Also where many tokens are equal, of which the first counts."""
    distinct = random(num_distinct, HIDDEN_SIZE, seed=seed).bfloat16()
    table = distinct[torch.arange(vocab_size) % num_distinct]
    heads = Heads(calls, table, is_exact=is_exact)
    normed = random(num_rows, HIDDEN_SIZE, seed=seed + 1) * 3
    logits, tokens = heads.twin(normed, is_exact=is_exact)
    wishes = np.random.default_rng(seed).integers(1, 4, num_rows).astype(np.uint8)
    picked = heads.head.pick(normed, wishes, largest_row_norm=heads.largest_row_norm)
    is_kept = wishes & KEEP != 0
    assert torch.equal(picked.logits[is_kept], logits[is_kept])
    is_picked = wishes & PICK != 0
    assert picked.token_ids[is_picked].tolist() == np.array(tokens)[is_picked].tolist()


def test_what_lies_closer_than_rounding_is_decided_by_exact_logits(calls: StepLibrary) -> None:
    normed = random(60, HIDDEN_SIZE, seed=1)
    table = random(3000, HIDDEN_SIZE, seed=2).bfloat16()
    # For each state two tokens as far along it, and apart along what rounding changes.
    error = normed - normed.bfloat16()
    error -= normed * ((error * normed).sum(-1) / (normed * normed).sum(-1))[:, None]
    apart = error * (normed.norm(dim=-1) / error.norm(dim=-1))[:, None]
    table[:60] = (3 * (normed + apart)).bfloat16()
    table[1000:1060] = (3 * (normed - apart)).bfloat16()
    heads = Heads(calls, table)
    wishes = np.full(60, PICK, dtype=np.uint8)
    picked = heads.head.pick(normed, wishes, largest_row_norm=heads.largest_row_norm)
    exact = (normed.double() @ table.double().T).argmax(dim=-1)
    assert picked.token_ids.tolist() == exact.tolist()
    coarse = heads.head(normed.bfloat16()).argmax(dim=-1)
    assert not torch.equal(coarse, exact), "rounding decides somewhere"


def test_rows_that_are_not_finite_yield_nothing(calls: StepLibrary) -> None:
    table = random(257, HIDDEN_SIZE, seed=3).bfloat16()
    heads = Heads(calls, table)
    normed = random(20, HIDDEN_SIZE, seed=4)
    normed[1, 7], normed[17, 0] = torch.nan, torch.inf
    wishes = np.full(20, PICK, dtype=np.uint8)
    picked = heads.head.pick(normed, wishes, largest_row_norm=heads.largest_row_norm)
    assert np.flatnonzero(picked.token_ids < 0).tolist() == [1, 17]


def test_a_single_logit_that_is_not_a_number_is_noticed_wherever_it_stands(
    calls: StepLibrary,
) -> None:
    for vocab_size, token in ((40, 39), (700, 0), (700, 333), (32, 16)):
        table = random(vocab_size, HIDDEN_SIZE, seed=5).bfloat16()
        table[token] = torch.nan
        heads = Heads(calls, table)
        normed = random(18, HIDDEN_SIZE, seed=6)
        wishes = np.full(18, PICK, dtype=np.uint8)
        picked = heads.head.pick(normed, wishes, largest_row_norm=1.0)
        assert (picked.token_ids == -1).all()


def test_infinite_logits_yield_nothing_unless_they_are_the_least(calls: StepLibrary) -> None:
    normed = random(3, HIDDEN_SIZE, seed=7).abs()
    for sign, expected in ((-1.0, 0), (1.0, -1)):
        table = torch.ones(100, HIDDEN_SIZE).bfloat16()
        table[5] = sign * torch.inf
        heads = Heads(calls, table)
        wishes = np.full(3, PICK, dtype=np.uint8)
        picked = heads.head.pick(normed, wishes, largest_row_norm=1.0)
        assert picked.token_ids.tolist() == [expected] * 3


@pytest.mark.parametrize("largest_row_norm", [torch.inf, torch.nan, 3e38])
def test_margins_that_tell_nothing_leave_it_to_the_logits(
    calls: StepLibrary, largest_row_norm: float
) -> None:
    heads = Heads(calls, random(700, HIDDEN_SIZE, seed=8).bfloat16())
    normed = random(20, HIDDEN_SIZE, seed=9)
    wishes = np.full(20, PICK, dtype=np.uint8)
    picked = heads.head.pick(normed, wishes, largest_row_norm=largest_row_norm)
    tokens = picked.token_ids.tolist()
    assert tokens == heads.head(normed.bfloat16()).argmax(dim=-1).tolist()
