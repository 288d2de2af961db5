"""Which GGUF tensor becomes which Hugging Face tensor, and what changes on the way.

Facts of llama.cpp's convert_hf_to_gguf.py that are undone here: in the llama family it reorders the
rows of q and k for its own rotary embedding (``permute``), and it adds 1 to Gemma's norms, whose
Hugging Face weights count from there (``norm_shift``). Reads no data.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.checkpoints.errors import CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.safetensors_file import TensorSpec

_IGNORED = {"rope_freqs.weight"}
"""Not weights: config.json says the same."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a Hugging Face tensor comes from."""

    gguf_name: str
    spec: TensorSpec
    rotary_dim: int = 0
    """Rows per head, where GGUF interleaves them for its own rotary embedding; 0 elsewhere."""
    shift: float = 0.0
    """What GGUF adds to every value."""

    def restore(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Hugging Face's values of some rows, whole heads of them; a vector is one row."""
        if self.rotary_dim and len(self.spec.shape) == 1:
            return unpermute_rotary(values.T, self.rotary_dim).T
        if self.rotary_dim:
            return unpermute_rotary(values, self.rotary_dim)
        return values - np.float32(self.shift) if self.shift else values


def unpermute_rotary(values: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Undo llama.cpp's reordering of q and k rows: from pairs (0, 1), (2, 3)... per head to halves.

    Shape [num_heads * head_dim, columns].
    """
    rows, columns = values.shape
    pairs = values.reshape(rows // head_dim, head_dim // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def tensor_origins(config: dict[str, Any]) -> list[Origin]:
    """All tensors of the model that ``config`` (config.json) describes, in the order written."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shift = _norm_shift(config)
    origins = [_matrix("token_embd", "model.embed_tokens", (vocab, hidden))]
    layer_origins = _layer_origins(config)
    for layer in range(config["num_hidden_layers"]):
        origins += [_in_layer(origin, layer) for origin in layer_origins]
    origins.append(_norm("output_norm", "model.norm", hidden, shift))
    if not config["tie_word_embeddings"]:
        origins.append(_matrix("output", "lm_head", (vocab, hidden)))
    return origins


def check_tensors(file: GgufFile, origins: list[Origin]) -> None:
    """Raise unless the file holds just these tensors in these shapes."""
    for origin in origins:
        tensor = file.tensors.get(origin.gguf_name)
        if tensor is None or tensor.shape != origin.spec.shape:
            found = "no tensor" if tensor is None else f"a tensor of shape {tensor.shape}"
            raise CorruptCheckpoint(
                f"{file.path} holds {found} {origin.gguf_name!r} where its metadata calls for "
                f"shape {origin.spec.shape}. Download the file again."
            )
    unknown = file.tensors.keys() - {origin.gguf_name for origin in origins} - _IGNORED
    if unknown:
        raise UnsupportedCheckpoint(
            f"{file.path} holds tensors that its family does not have: "
            f"{', '.join(name[:80] for name in sorted(unknown)[:3])}."
        )


def _layer_origins(config: dict[str, Any]) -> list[Origin]:
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    q_rows = config["num_attention_heads"] * head_dim
    kv_rows = config["num_key_value_heads"] * head_dim
    family = config["model_type"]
    rotary_dim = head_dim if family in ("llama", "mistral") else 0
    has_output_bias = bool(config.get("attention_bias", False))
    has_qkv_bias = has_output_bias or family == "qwen2"
    shift = _norm_shift(config)
    origins = [
        _norm("attn_norm", "input_layernorm", hidden, shift),
        *_linear("attn_q", "self_attn.q_proj", (q_rows, hidden), has_qkv_bias, rotary_dim),
        *_linear("attn_k", "self_attn.k_proj", (kv_rows, hidden), has_qkv_bias, rotary_dim),
        *_linear("attn_v", "self_attn.v_proj", (kv_rows, hidden), has_qkv_bias),
        *_linear("attn_output", "self_attn.o_proj", (hidden, q_rows), has_output_bias),
    ]
    if family in ("qwen3", "gemma3_text"):
        origins += [
            _norm("attn_q_norm", "self_attn.q_norm", head_dim, shift),
            _norm("attn_k_norm", "self_attn.k_norm", head_dim, shift),
        ]
    if family == "gemma3_text":
        origins += [
            _norm("post_attention_norm", "post_attention_layernorm", hidden, shift),
            _norm("ffn_norm", "pre_feedforward_layernorm", hidden, shift),
            _norm("post_ffw_norm", "post_feedforward_layernorm", hidden, shift),
        ]
    else:
        origins.append(_norm("ffn_norm", "post_attention_layernorm", hidden, shift))
    return origins + _mlp_origins(config)


def _mlp_origins(config: dict[str, Any]) -> list[Origin]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    has_bias = bool(config.get("mlp_bias", False))
    return [
        *_linear("ffn_gate", "mlp.gate_proj", (inner, hidden), has_bias),
        *_linear("ffn_up", "mlp.up_proj", (inner, hidden), has_bias),
        *_linear("ffn_down", "mlp.down_proj", (hidden, inner), has_bias),
    ]


def _norm_shift(config: dict[str, Any]) -> float:
    return 1.0 if config["model_type"] == "gemma3_text" else 0.0


def _matrix(gguf_name: str, name: str, shape: tuple[int, int]) -> Origin:
    return Origin(f"{gguf_name}.weight", TensorSpec(f"{name}.weight", shape))


def _norm(gguf_name: str, name: str, size: int, shift: float) -> Origin:
    return Origin(f"{gguf_name}.weight", TensorSpec(f"{name}.weight", (size,)), shift=shift)


def _linear(
    gguf_name: str, name: str, shape: tuple[int, int], has_bias: bool, rotary_dim: int = 0
) -> list[Origin]:
    origins = [Origin(f"{gguf_name}.weight", TensorSpec(f"{name}.weight", shape), rotary_dim)]
    if has_bias:
        bias = TensorSpec(f"{name}.bias", shape[:1])
        origins.append(Origin(f"{gguf_name}.bias", bias, rotary_dim))
    return origins


def _in_layer(origin: Origin, layer: int) -> Origin:
    spec = TensorSpec(f"model.layers.{layer}.{origin.spec.name}", origin.spec.shape)
    return Origin(f"blk.{layer}.{origin.gguf_name}", spec, origin.rotary_dim, origin.shift)
