"""Writes a transformers model as a GGUF file by the conventions of llama.cpp's converter
(convert_hf_to_gguf.py), with the ``gguf`` package's writer and its own table of tensor names.
"""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from numpy.typing import NDArray
from transformers import PreTrainedModel

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}
TOKENS = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]


def write_model(
    model: PreTrainedModel,
    path: Path,
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
) -> Path:
    """Matrices are stored as ``quantization``, vectors as float32."""
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _add_metadata(writer, config)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    if "rope_type" in config.rope_parameters and config.rope_parameters["rope_type"] == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_factors(config))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = _as_llama_cpp_stores(name, tensor.float().numpy(), config)
        gguf_name = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert gguf_name is not None, name
        kind = GGMLQuantizationType.F32 if values.ndim == 1 else quantization
        writer.add_tensor(gguf_name, gguf.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _as_llama_cpp_stores(
    name: str, values: NDArray[np.float32], config: Any
) -> NDArray[np.float32]:
    if config.model_type in ("llama", "mistral"):
        for part, num_heads in (
            ("q_proj", config.num_attention_heads),
            ("k_proj", config.num_key_value_heads),
        ):
            if f".{part}." in name:
                halves = values.reshape(num_heads, 2, len(values) // num_heads // 2, -1)
                return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return values + 1
    return values


def _add_metadata(writer: GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if config.model_type in ("qwen3", "gemma3_text"):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.model_type in ("llama", "mistral"):
        writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    if config.model_type in ("mistral", "gemma3_text"):
        writer.add_sliding_window(config.sliding_window)
    if getattr(config, "final_logit_softcapping", None):
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    rope = config.rope_parameters
    _add_rope(writer, rope.get("full_attention", rope))
    _add_tokenizer(writer)


def _add_rope(writer: GGUFWriter, rope: dict[str, Any]) -> None:
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])


def _llama3_factors(config: Any) -> NDArray[np.float32]:
    """``generate_extra_tensors`` of llama.cpp's LlamaModel: one frequency after the other."""
    rope, dim = config.rope_parameters, config.head_dim
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    context_len = rope["original_max_position_embeddings"]
    factors = []
    for freq in 1.0 / (rope["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)):
        wavelength = 2 * np.pi / float(freq)
        if wavelength < context_len / high:
            factors.append(1.0)
        elif wavelength > context_len / low:
            factors.append(rope["factor"])
        else:
            smooth = (context_len / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def _add_tokenizer(writer: GGUFWriter) -> None:
    writer.add_tokenizer_model("llama")
    writer.add_token_list(TOKENS)
    writer.add_token_scores([0.0] * 259 + [-3.0, -2.0, -1.0])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1, 1, 1])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)


def read_json(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content
