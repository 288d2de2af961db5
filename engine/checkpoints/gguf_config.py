"""Turns the metadata of a llama-family GGUF file into Hugging Face's config.json.

Refuses, rather than ignores, what the Llama model code would compute differently. Reads no tensors'
data.
"""

from typing import Any

import numpy as np

from engine.checkpoints.errors import CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_file import GgufFile, Value


def llama_config(file: GgufFile) -> dict[str, Any]:
    """The config.json of the model; raises `UnsupportedCheckpoint` for another family."""
    architecture = file.metadata.get("general.architecture")
    if architecture != "llama":
        raise UnsupportedCheckpoint(
            f"{file.path} holds a model of architecture {architecture!r}; only 'llama' can be "
            "converted."
        )
    _refuse_variants(file)
    num_heads = _positive(file, "llama.attention.head_count")
    hidden_size = _positive(file, "llama.embedding_length")
    head_dim = _positive(file, "llama.attention.key_length", hidden_size // num_heads)
    rotary_dim = _positive(file, "llama.rope.dimension_count", head_dim)
    if rotary_dim != head_dim or head_dim % 2:
        raise UnsupportedCheckpoint(
            f"{file.path}: {rotary_dim} of {head_dim} dimensions per head are rotated; only all "
            "of them can be."
        )
    num_layers = _positive(file, "llama.block_count")
    if num_layers > len(file.tensors):
        raise _corrupt(file, "llama.block_count", num_layers)
    num_kv_heads = _positive(file, "llama.attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise _corrupt(file, "llama.attention.head_count_kv", num_kv_heads)
    rope_theta = _number(file, "llama.rope.freq_base", 10000.0)
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _vocab_size(file),
        "hidden_size": hidden_size,
        "intermediate_size": _positive(file, "llama.feed_forward_length"),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": _positive(file, "llama.context_length"),
        "rms_norm_eps": _number(file, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope_theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": special_token_id(file, "bos"),
        "eos_token_id": special_token_id(file, "eos"),
        "pad_token_id": special_token_id(file, "padding"),
        "dtype": "bfloat16",
    }


def special_token_id(file: GgufFile, kind: str) -> int | None:
    """Id of the ``bos``, ``eos``, ``unknown`` or ``padding`` token, if the file names one."""
    key = f"tokenizer.ggml.{kind}_token_id"
    value = file.metadata.get(key)
    if value is None:
        return None
    # bool is a subclass of int, and no token id.
    if type(value) is not int or not 0 <= value < _vocab_size(file):
        raise _corrupt(file, key, value)
    return value


def _refuse_variants(file: GgufFile) -> None:
    scaling = file.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in file.tensors:
        raise UnsupportedCheckpoint(
            f"{file.path} scales its rotary embedding, which cannot be converted."
        )
    if file.metadata.get("llama.attention.sliding_window", 0):
        raise UnsupportedCheckpoint(
            f"{file.path} uses sliding-window attention, which cannot be converted."
        )
    if file.metadata.get("llama.expert_count", 0):
        raise UnsupportedCheckpoint(
            f"{file.path} is a mixture of experts, which cannot be converted."
        )


def _vocab_size(file: GgufFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise CorruptCheckpoint(f"{file.path} has no token embedding. Download it again.")
    return embedding.shape[0]


def _positive(file: GgufFile, key: str, default: int | None = None) -> int:
    value = file.metadata.get(key, default)
    if type(value) is not int or not 0 < value < 2**31:
        raise _corrupt(file, key, value)
    return value


def _number(file: GgufFile, key: str, default: float | None = None) -> float:
    """A finite positive number, as short as float32 allows: 1e-05 for 9.999999747378752e-06."""
    value = file.metadata.get(key, default)
    if type(value) is not float or not 0 < value < float("inf"):
        raise _corrupt(file, key, value)
    return float(str(np.float32(value)))


def _corrupt(file: GgufFile, key: str, value: Value | None) -> CorruptCheckpoint:
    problem = "is missing" if value is None else f"is {str(value)[:40]!r}, which makes no sense"
    return CorruptCheckpoint(f"{file.path}: metadata {key} {problem}. Download the file again.")
