"""Models from tensors: of any size without memory, and from files that don't fit their config."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from engine.errors import CheckpointError
from engine.loader import MetaWeights, WeightFiles
from engine.models.decoder import DecoderModel
from engine.models.loading import load_model
from engine.models.registry import read_model_config
from tests.unit.engine.paged_model import CPU, Chunk, PagedModel, load_tiny
from tests.unit.engine.tiny_models import VOCAB_SIZE, make_tiny_model

LLAMA_3_70B: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
}


def load_meta(config: dict[str, Any], weights: MetaWeights) -> DecoderModel:
    return load_model(
        read_model_config(config),
        weights,
        dtype=torch.bfloat16,
        device=torch.device("meta"),
        layout="mapped",
    )


@pytest.mark.parametrize(
    "config",
    [
        LLAMA_3_70B,
        LLAMA_3_70B | {"model_type": "qwen2", "tie_word_embeddings": True},
        LLAMA_3_70B | {"model_type": "qwen3", "attention_bias": True},
        {"model_type": "gemma3", "text_config": {}},
    ],
    ids=lambda config: config["model_type"],
)
def test_a_model_of_any_size_is_built_and_run_without_memory(config: dict[str, Any]) -> None:
    weights = MetaWeights(torch.bfloat16)
    model = load_meta(config, weights)
    sizes = model.config
    assert weights.num_elements == sizes.num_parameters()
    assert weights.num_bytes == 2 * sizes.num_parameters()

    def attend(query: Tensor, new_kv: Tensor, kv: Tensor) -> Tensor:
        assert query.shape == (3, sizes.num_heads, sizes.head_dim)
        assert new_kv.shape == (3, 2, sizes.num_kv_heads, sizes.head_dim)
        return query.flatten(1)

    with torch.inference_mode():
        token_ids = torch.zeros(3, dtype=torch.int64, device="meta")
        num_layers = sizes.num_layers
        hidden = model.forward(
            token_ids, token_ids, [torch.empty(0)] * num_layers, [attend] * num_layers
        )
        assert model.head.logits(hidden).shape == (3, sizes.vocab_size)


def test_the_largest_model_in_view_has_the_published_number_of_parameters() -> None:
    assert read_model_config(LLAMA_3_70B).num_parameters() == 70_553_706_496


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text"])
def test_names_and_shapes_are_those_of_transformers(model_type: str) -> None:
    reference = make_tiny_model(model_type, attention_bias=True, mlp_bias=True)
    expected = {name: tuple(tensor.shape) for name, tensor in reference.state_dict().items()}
    config = read_model_config(reference.config.to_dict())
    if config.has_tied_embeddings:
        del expected["lm_head.weight"]
    assert dict(config.tensor_shapes()) == expected


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_weights_of_another_dtype_are_converted(tmp_path: Path, dtype: torch.dtype) -> None:
    reference = make_tiny_model("qwen3", tie_word_embeddings=True)
    for parameter in reference.parameters():
        parameter.data = parameter.data.to(dtype).float()
    config = load_tiny(reference, tmp_path).config
    path = tmp_path / "stored.safetensors"
    stored = load_file(tmp_path / "model.safetensors")
    save_file({name: tensor.to(dtype) for name, tensor in stored.items()}, path)
    model = load_model(
        config, WeightFiles([path]), dtype=torch.float32, device=CPU, layout="mapped"
    )
    token_ids = torch.randint(3, VOCAB_SIZE, (1, 9))
    (logits,) = PagedModel(model, token_ids, attention="cpu").step([Chunk(0, 0, 9)])
    with torch.inference_mode():
        expected = reference(token_ids).logits[0]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


def rewritten(folder: Path, change: dict[str, Tensor | None]) -> WeightFiles:
    tensors = {**load_file(folder / "model.safetensors"), **change}
    path = folder / "changed.safetensors"
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    return WeightFiles([path])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.norm.weight": None}, r"no tensor 'model\.norm\.weight'"),
        ({"model.norm.weight": torch.zeros(47)}, r"has shape \(47,\)"),
        ({"model.extra.weight": torch.zeros(1)}, r"1 tensors .* 'model\.extra\.weight'"),
        ({"model.norm.weight": torch.zeros(48, dtype=torch.int8)}, "stored as I8"),
    ],
    ids=str,
)
def test_tensors_that_do_not_fit_the_config_are_named(
    tmp_path: Path, change: dict[str, Tensor | None], message: str
) -> None:
    reference = make_tiny_model("llama", tie_word_embeddings=True)
    config = load_tiny(reference, tmp_path).config
    with pytest.raises(CheckpointError, match=message):
        load_model(
            config, rewritten(tmp_path, change), dtype=torch.float32, device=CPU, layout="mapped"
        )


@pytest.mark.parametrize("prefix", ["model.language_model.", "language_model.model."])
def test_both_spellings_of_a_gemma_with_vision_load_without_its_tower(
    tmp_path: Path, prefix: str
) -> None:
    reference = make_tiny_model("gemma3_text")
    load_tiny(reference, tmp_path)
    tensors = {
        name.replace("model.", prefix, 1): tensor
        for name, tensor in load_file(tmp_path / "model.safetensors").items()
    }
    path = tmp_path / "both.safetensors"
    save_file(tensors | {"vision_tower.encoder.weight": torch.zeros(1)}, path)
    config = read_model_config({"model_type": "gemma3", "text_config": reference.config.to_dict()})
    load_model(config, WeightFiles([path]), dtype=torch.float32, device=CPU, layout="mapped")


@pytest.mark.parametrize("attention", ["reference", "cpu"])
@pytest.mark.parametrize("model_type", ["llama", "qwen2", "qwen3", "gemma3_text"])
def test_bfloat16_computes_about_what_float32_does(
    tmp_path: Path, model_type: str, attention: str
) -> None:
    reference = make_tiny_model(model_type, initializer_range=0.1, sliding_window=5)
    config = load_tiny(reference, tmp_path).config
    token_ids = torch.randint(3, VOCAB_SIZE, (1, 12), generator=torch.Generator().manual_seed(3))
    exact, coarse = (
        PagedModel(
            load_model(
                config,
                WeightFiles([tmp_path / "model.safetensors"]),
                dtype=dtype,
                device=CPU,
                layout="mapped",
            ),
            token_ids,
            attention=attention,
            dtype=dtype,
        ).step([Chunk(0, 0, 12)])[0]
        for dtype in (torch.float32, torch.bfloat16)
    )
    assert coarse.dtype is torch.bfloat16
    distance = (coarse.float() - exact).norm() / exact.norm()
    assert distance < 0.03
