from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from engine.layers.norm import RmsNorm
from engine.layers.vocabulary import WholeVocabulary
from engine.models.model_config import ModelConfig
from engine.models.output_head import OutputHead

HIDDEN_SIZE = 32


def make_head(weight: Tensor, softcap: float | None) -> OutputHead:
    """With float32 logits of rounded states, as the compiled step has them."""
    rounded = weight.to(torch.bfloat16)
    vocabulary = WholeVocabulary(
        embedding=rounded, head=rounded, lm_head=lambda x: x.float() @ rounded.float().T
    )
    norm = RmsNorm(torch.ones(HIDDEN_SIZE), eps=1e-5, offset=0.0, dtype=torch.bfloat16)
    config = cast(ModelConfig, SimpleNamespace(final_logit_softcap=softcap))
    return OutputHead(config, vocabulary=vocabulary, final_norm=norm)


@pytest.mark.parametrize("softcap", [None, 30.0])
def test_logits_that_differ_by_more_than_the_margin_are_in_the_right_order(
    softcap: float | None,
) -> None:
    random = torch.Generator().manual_seed(2)
    hidden = torch.randn(40, HIDDEN_SIZE, generator=random) * 5
    weight = torch.randn(300, HIDDEN_SIZE, generator=random)
    # Two rows that undo what rounding does to the first state: nearly the worst there can be.
    normed = torch.nn.functional.rms_norm(hidden, (HIDDEN_SIZE,), eps=1e-5)
    error = normed[0] - normed[0].bfloat16().float()
    weight[:2] = torch.stack([error, -error]) * (weight.norm(dim=-1).max() / error.norm())
    head = make_head(weight, softcap)
    margins = head.margins(hidden)
    assert margins is not None
    exact = head.exact_logits(hidden, torch.arange(300).expand(40, -1))
    errors = head.logits(hidden) - exact
    largest = errors.amax(dim=-1) - errors.amin(dim=-1)
    assert (largest <= margins).all()
    assert softcap is not None or largest[0] > 0.9 * margins[0], "it is no wider than it must be"


def test_float32_logits_of_float32_weights_are_exact() -> None:
    weight = torch.ones(4, HIDDEN_SIZE)
    vocabulary = WholeVocabulary(embedding=weight, head=weight, lm_head=lambda x: x @ weight.T)
    norm = RmsNorm(torch.ones(HIDDEN_SIZE), eps=1e-5, offset=0.0, dtype=torch.float32)
    config = cast(ModelConfig, SimpleNamespace(final_logit_softcap=None))
    assert OutputHead(config, vocabulary=vocabulary, final_norm=norm).is_exact
    assert not make_head(weight, None).is_exact
