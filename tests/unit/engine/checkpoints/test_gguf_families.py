"""Every family: a tiny random transformers model, written as llama.cpp's converter writes it,
comes back as the same model.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from gguf import GGMLQuantizationType
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from engine.checkpoints.errors import CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_convert import convert_gguf
from tests.unit.engine.checkpoints.llama_cpp_writer import TOKENS, read_json, write_model

SIZES: dict[str, Any] = {
    "vocab_size": len(TOKENS),
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 24.0,
}
llama = partial(LlamaConfig, **SIZES)
gemma3 = partial(Gemma3TextConfig, **SIZES | {"num_hidden_layers": 7}, sliding_window=8)
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": llama(),
    "llama-tied-mqa": llama(tie_word_embeddings=True, num_key_value_heads=1),
    "llama-biases": llama(attention_bias=True, mlp_bias=True, num_key_value_heads=4),
    "llama-3.1": llama(rope_parameters=LLAMA3),
    "llama-3.2": llama(rope_parameters=LLAMA3 | {"factor": 32.0}),
    "llama-linear": llama(
        rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    ),
    "llama-yarn": llama(rope_parameters=YARN),
    "mistral": MistralConfig(**SIZES, sliding_window=8),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2-tied-yarn": Qwen2Config(**SIZES, tie_word_embeddings=True, rope_parameters=YARN),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "gemma3": gemma3(head_dim=16, query_pre_attn_scalar=16),
    "gemma3-linear-softcap": gemma3(
        head_dim=8,
        query_pre_attn_scalar=8,
        final_logit_softcapping=5.0,
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        },
    ),
}
NOT_COMPARED = {"_name_or_path", "architectures", "dtype", "transformers_version", "head_dim"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # the models are too small to share
    yield
    torch.set_num_threads(before)


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Of bfloat16 values, so that nothing is lost where a file keeps them."""
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            random = torch.randn_like(parameter) * 0.2
            parameter.copy_(random.to(torch.bfloat16))
    return model.eval()


def convert(path: Path) -> Path:
    folder = path.with_suffix("")
    folder.mkdir()
    convert_gguf(path, folder)
    return folder


@pytest.mark.parametrize("name", CONFIGS)
def test_a_model_comes_back_with_the_same_weights_config_and_logits(
    tmp_path: Path, name: str
) -> None:
    model = random_model(CONFIGS[name])
    folder = convert(write_model(model, tmp_path / "model.gguf"))

    written = load_file(folder / "model.safetensors")
    original = model.state_dict()
    if model.config.tie_word_embeddings:
        del original["lm_head.weight"]
    assert written.keys() == original.keys()
    for key, values in written.items():
        assert torch.equal(values, original[key].to(torch.bfloat16)), key

    again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected, found = model.config.to_dict(), again.config.to_dict()
    differing = {key for key in expected if expected[key] != found.get(key)} - NOT_COMPARED
    assert differing <= {"max_window_layers", "tokenizer_class"}
    tokens = torch.arange(40).reshape(1, -1) + 200
    with torch.no_grad():
        torch.testing.assert_close(again(tokens).logits, model(tokens).logits)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "gemma3"])
def test_transformers_own_reader_of_gguf_finds_the_same_weights(tmp_path: Path, name: str) -> None:
    model = random_model(CONFIGS[name])
    path = write_model(model, tmp_path / "model.gguf")
    written = load_file(convert(path) / "model.safetensors")

    read = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    assert read.keys() == written.keys()
    for key, values in written.items():
        assert torch.equal(values, torch.as_tensor(read[key]).to(torch.bfloat16)), key


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q5_1", "Q8_0"])
def test_quantized_weights_are_those_that_gguf_dequantizes(tmp_path: Path, kind: str) -> None:
    quantization = GGMLQuantizationType[kind]
    model = random_model(CONFIGS["gemma3"])
    folder = convert(write_model(model, tmp_path / "model.gguf", quantization))

    for name, values in load_file(folder / "model.safetensors").items():
        original = model.state_dict()[name].float().numpy()
        if original.ndim == 2:
            original = gguf.dequantize(gguf.quantize(original, quantization), quantization)
        assert torch.equal(values, torch.from_numpy(original).to(torch.bfloat16)), name


def test_gemma_27b_scales_its_scores_by_another_number(tmp_path: Path) -> None:
    sizes = SIZES | {"num_hidden_layers": 62, "hidden_size": 16, "intermediate_size": 8}
    config = Gemma3TextConfig(**sizes, head_dim=2, sliding_window=8)
    folder = convert(write_model(random_model(config), tmp_path / "model.gguf"))
    assert read_json(folder / "config.json")["query_pre_attn_scalar"] == 16 // 4


def test_rotary_factors_of_another_formula_are_refused(tmp_path: Path) -> None:
    config = llama(rope_parameters=LLAMA3 | {"original_max_position_embeddings": 4096})
    path = write_model(random_model(config), tmp_path / "model.gguf")
    with pytest.raises(UnsupportedCheckpoint, match=r"factors that are not those of Llama 3\.1"):
        convert(path)


def test_a_bias_that_only_some_layers_have_is_corrupt(tmp_path: Path) -> None:
    model = random_model(CONFIGS["llama-biases"])
    del model.model.layers[1].self_attn.k_proj.bias
    with pytest.raises(CorruptCheckpoint, match=r"blk\.1\.attn_k\.bias"):
        convert(write_model(model, tmp_path / "model.gguf"))


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "mistral3")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedCheckpoint, match="'mistral3'; only 'gemma3', 'llama'"):
        convert(path)
