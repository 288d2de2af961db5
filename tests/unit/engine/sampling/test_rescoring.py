import numpy as np
import pytest
import torch
from torch import Tensor

from engine.sampling.rescoring import for_samples

EXACT = torch.arange(40.0).reshape(4, 10)


def rescore(token_ids: Tensor) -> Tensor:
    """Asked for all rows of a step at once, as a model is."""
    assert len(token_ids) == len(EXACT)
    return EXACT.gather(-1, token_ids)


@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [2], [3, 0], [1, 1, 3, 1, 0], [2, 2]])
def test_samples_in_any_order_get_the_logits_of_their_own_row(rows: list[int]) -> None:
    ids = torch.randint(10, (len(rows), 3), generator=torch.Generator().manual_seed(1))
    found = for_samples(rescore, np.array(rows), 4)(ids)
    assert found.tolist() == EXACT[rows].gather(-1, ids).tolist()
