from pathlib import Path

import torch

from engine.models.calibration import measure_importance
from engine.models.registry import read_model_config
from tests.unit.engine.paged_model import save_tiny
from tests.unit.engine.tiny_models import make_tiny_model


def test_an_input_counts_by_its_mean_square(tmp_path: Path) -> None:
    reference = make_tiny_model("llama", num_hidden_layers=2)
    with torch.no_grad():
        reference.model.layers[0].post_attention_layernorm.weight.fill_(1.0)
        reference.model.layers[0].post_attention_layernorm.weight[5] = 20.0
    config = read_model_config(reference.config.to_dict())
    importance = measure_importance("int4", config, [save_tiny(reference, tmp_path)])
    assert importance.keys() == {
        f"model.layers.{layer}.{kind}"
        for layer in range(2)
        for kind in ("qkv", "output", "gate_up", "down")
    }
    first = importance["model.layers.0.gate_up"]
    assert first.shape == (config.hidden_size,)
    others = torch.cat([first[:5], first[6:]])
    # All inputs are of about one size before the norm's weight.
    assert first[5] > 40 * others.mean()
    assert (others > 0).all()


def test_nothing_is_measured_for_8_bits(tmp_path: Path) -> None:
    config = read_model_config(make_tiny_model("llama").config.to_dict())
    assert measure_importance("int8", config, [tmp_path / "not read"]) == {}
