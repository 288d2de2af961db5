"""What decides packed bytes shows in the digest."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from engine.models import calibration
from engine.native import pack_recipe, quantized_packing
from engine.native.pack_recipe import recipe_digest, sample_weights
from engine.quantization import panels, rounding
from engine.quantization.rounding import SHARES, quantize
from engine.quantization.weight import CODEBOOKS, GROUP_SIZES, Scheme


def test_it_is_the_same_each_time_whatever_the_threads() -> None:
    num_threads = torch.get_num_threads()
    first = recipe_digest()
    try:
        torch.set_num_threads(1)
        assert recipe_digest() == first
    finally:
        torch.set_num_threads(num_threads)


def changed_codebook(scheme: Scheme) -> Mapping[Scheme, Tensor]:
    changed = CODEBOOKS[scheme].clone()
    changed[8] += 1
    return {**CODEBOOKS, scheme: changed}


@pytest.mark.parametrize("scheme", CODEBOOKS)
def test_the_sample_shows_every_code(scheme: Scheme) -> None:
    rounded = quantize(torch.cat(sample_weights()), scheme)
    assert rounded.codes.unique().tolist() == list(range(len(CODEBOOKS[scheme])))


def test_the_sample_shows_every_share() -> None:
    weight = torch.cat(sample_weights())
    groups = weight.float().unflatten(1, (-1, GROUP_SIZES["int4"]))
    largest = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True)).squeeze(2)
    shares = quantize(weight, "int4").scales / largest * CODEBOOKS["int4"][-1]
    nearest = (shares.unsqueeze(-1) - torch.tensor(SHARES)).abs().argmin(dim=-1)
    assert nearest.unique().tolist() == list(range(len(SHARES)))


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [
        (calibration, "NUM_TOKENS", 256),
        (calibration, "SEED", 1),
        (pack_recipe, "SHARES", SHARES[:-1]),
        (rounding, "SHARES", SHARES[:-1]),
        (rounding, "_MAX_INT8", 126),
        *((rounding, "CODEBOOKS", changed_codebook(scheme)) for scheme in CODEBOOKS),
        (panels, "_int4_words", torch.clone),
        (panels, "_int6_words", torch.clone),
        (quantized_packing, "quantize", lambda rows, scheme, _: quantize(rows, scheme)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_change_of_how_weights_are_packed_changes_it(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, value: object
) -> None:
    before = recipe_digest()
    monkeypatch.setattr(module, name, value)
    assert recipe_digest() != before
