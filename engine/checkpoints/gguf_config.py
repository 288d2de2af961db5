"""Turns the metadata of a GGUF file into Hugging Face's config.json, as transformers writes it.

Refuses, rather than ignores, what a family's model code would compute differently. What llama.cpp
leaves out because its own code knows it (Gemma's pattern of windows, Qwen2's biases) is added here
as transformers knows it. Reads no tensors' data but the rotary factors.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from engine.checkpoints.errors import UnsupportedCheckpoint
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_metadata import count, flag, number, senseless, token_id, vocab_size
from engine.checkpoints.gguf_rope import rope_parameters

_MAX_WIDTH = 1 << 18  # the widest, Llama 3.1 405B, has rows of 53,248 numbers
_MAX_HEAD_DIM = 1 << 10  # with the width it bounds what is in memory at once: a head's rows
_MAX_LAYERS = 1 << 12
_MAX_CONTEXT = 2**31 - 1
_GEMMA3_PATTERN = 6  # every sixth layer sees everything (llama.cpp: set_swa_pattern(6))
_GEMMA3_SLIDING_THETA = 10000.0
_GEMMA3_27B_LAYERS = 62  # the one size that scales its scores otherwise (llama.cpp: LLM_TYPE_27B)
_REFUSED = {
    "expert_count": "is a mixture of experts",
    "attention.scale": "scales its attention scores",
    "attn_logit_softcapping": "caps its attention scores",
    "logit_scale": "scales its logits",
    "residual_scale": "scales its residuals",
    "embedding_scale": "scales its embeddings",
}
_REFUSED_BUT_FOR = {
    "attention.sliding_window": ("uses sliding-window attention", ("llama", "gemma3")),
    "final_logit_softcapping": ("caps its logits", ("gemma3",)),
}


def hugging_face_config(file: GgufFile) -> dict[str, Any]:
    """The config.json of the model; raises `UnsupportedCheckpoint` for another family."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in _FAMILIES:
        raise UnsupportedCheckpoint(
            f"{file.path} holds a model of architecture {str(architecture)[:40]!r}; only "
            f"{', '.join(map(repr, sorted(_FAMILIES)))} can be converted."
        )
    _refuse_variants(file, architecture)
    return _FAMILIES[architecture](file)


def _llama(file: GgufFile) -> dict[str, Any]:
    """Llama, and Mistral, which llama.cpp keeps under the same name."""
    config = _decoder(file, "llama", "LlamaForCausalLM")
    rope = _rope(file, "llama", config["head_dim"])
    config |= {
        "rope_theta": rope["rope_theta"],
        "rope_parameters": rope,
        "hidden_act": "silu",
        "attention_bias": _has_bias(file, ("attn_q", "attn_k", "attn_v", "attn_output")),
        "mlp_bias": _has_bias(file, ("ffn_gate", "ffn_up", "ffn_down")),
    }
    window = file.metadata.get("llama.attention.sliding_window", 0)
    if type(window) is not int or window:
        if config["attention_bias"] or config["mlp_bias"]:
            raise UnsupportedCheckpoint(f"{file.path} has a sliding window and biases, too.")
        config |= {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": count(file, "llama.attention.sliding_window", at_most=_MAX_CONTEXT),
        }
    return config | _ending(file)


def _qwen(file: GgufFile, architecture: str, model_class: str) -> dict[str, Any]:
    config = _decoder(file, architecture, model_class)
    config |= {
        "rope_parameters": _rope(file, architecture, config["head_dim"]),
        "hidden_act": "silu",
        "use_sliding_window": False,
        "sliding_window": None,
    }
    return config | _ending(file)


def _qwen2(file: GgufFile) -> dict[str, Any]:
    return _qwen(file, "qwen2", "Qwen2ForCausalLM")


def _qwen3(file: GgufFile) -> dict[str, Any]:
    return _qwen(file, "qwen3", "Qwen3ForCausalLM") | {"attention_bias": False}


def _gemma3(file: GgufFile) -> dict[str, Any]:
    config = _decoder(file, "gemma3", "Gemma3ForCausalLM", model_type="gemma3_text")
    num_layers, head_dim = config["num_hidden_layers"], config["head_dim"]
    pattern = count(
        file, "gemma3.attention.sliding_window_pattern", _GEMMA3_PATTERN, at_most=_MAX_LAYERS
    )
    sliding_theta = number(file, "gemma3.rope.freq_base_swa", _GEMMA3_SLIDING_THETA)
    is_27b = num_layers == _GEMMA3_27B_LAYERS
    softcap_key = "gemma3.final_logit_softcapping"
    config |= {
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": sliding_theta},
            "full_attention": _rope(file, "gemma3", head_dim, default_theta=1e6),
        },
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": (
            config["hidden_size"] // config["num_attention_heads"] if is_27b else head_dim
        ),
        "sliding_window": count(file, "gemma3.attention.sliding_window", at_most=_MAX_CONTEXT),
        "layer_types": [
            "sliding_attention" if (layer + 1) % pattern else "full_attention"
            for layer in range(num_layers)
        ],
        "attn_logit_softcapping": None,
        "final_logit_softcapping": (
            number(file, softcap_key) if softcap_key in file.metadata else None
        ),
        "use_bidirectional_attention": False,
    }
    return config | _ending(file)


_FAMILIES: dict[str, Callable[[GgufFile], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma3": _gemma3,
}
"""By general.architecture."""


def _decoder(
    file: GgufFile, architecture: str, model_class: str, *, model_type: str | None = None
) -> dict[str, Any]:
    """What all families have in common."""
    num_heads = count(file, f"{architecture}.attention.head_count", at_most=_MAX_WIDTH)
    hidden_size = count(file, f"{architecture}.embedding_length", at_most=_MAX_WIDTH)
    head_dim_key = f"{architecture}.attention.key_length"
    head_dim = count(file, head_dim_key, hidden_size // num_heads, at_most=_MAX_HEAD_DIM)
    for key in ("rope.dimension_count", "attention.value_length"):
        other = count(file, f"{architecture}.{key}", head_dim, at_most=_MAX_WIDTH)
        if other != head_dim or head_dim % 2:
            raise UnsupportedCheckpoint(
                f"{file.path}: {key} is {other} where heads have {head_dim} dimensions; only heads "
                "that are rotated as a whole can be converted."
            )
    num_layers = count(file, f"{architecture}.block_count", at_most=_MAX_LAYERS)
    if num_layers > len(file.tensors):
        raise senseless(file, f"{architecture}.block_count", num_layers)
    kv_heads_key = f"{architecture}.attention.head_count_kv"
    num_kv_heads = count(file, kv_heads_key, num_heads, at_most=num_heads)
    if num_heads % num_kv_heads:
        raise senseless(file, kv_heads_key, num_kv_heads)
    return {
        "architectures": [model_class],
        "model_type": model_type or architecture,
        "vocab_size": vocab_size(file),
        "hidden_size": hidden_size,
        "intermediate_size": count(file, f"{architecture}.feed_forward_length", at_most=_MAX_WIDTH),
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": count(
            file, f"{architecture}.context_length", at_most=_MAX_CONTEXT
        ),
        "rms_norm_eps": number(file, f"{architecture}.attention.layer_norm_rms_epsilon"),
    }


def _ending(file: GgufFile) -> dict[str, Any]:
    return {
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": token_id(file, "bos"),
        "eos_token_id": token_id(file, "eos"),
        "pad_token_id": token_id(file, "padding"),
        "dtype": "bfloat16",
    }


def _rope(
    file: GgufFile, architecture: str, head_dim: int, *, default_theta: float = 10000.0
) -> dict[str, Any]:
    rope_theta = number(file, f"{architecture}.rope.freq_base", default_theta)
    return rope_parameters(file, architecture, head_dim=head_dim, rope_theta=rope_theta)


def _has_bias(file: GgufFile, names: tuple[str, ...]) -> bool:
    """Whether the first layer has them: a layer that differs is found out with its tensors."""
    return any(f"blk.0.{name}.bias" in file.tensors for name in names)


def _refuse_variants(file: GgufFile, architecture: str) -> None:
    refused = _REFUSED | {
        key: what for key, (what, known) in _REFUSED_BUT_FOR.items() if architecture not in known
    }
    for key, what in refused.items():
        value = file.metadata.get(f"{architecture}.{key}", 0)
        if isinstance(value, (list, np.ndarray)) or value:
            raise UnsupportedCheckpoint(f"{file.path} {what}, which cannot be converted.")
    if not flag(file, f"{architecture}.attention.causal", default=True):
        raise UnsupportedCheckpoint(f"{file.path} makes embeddings, not text: it looks ahead.")
