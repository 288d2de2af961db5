"""A Llama of 30k parameters, as a GGUF file written by the ``gguf`` package and as the tensors it
was made from.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

HIDDEN, INNER, HEADS, KV_HEADS, HEAD_DIM = 32, 64, 4, 2, 8
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "he", "Ġhe"]


@dataclass
class TinyModel:
    """Change a field, then ``write``."""

    tensors: dict[str, NDArray[np.float32]]
    """Hugging Face name to values."""
    metadata: dict[str, object] = field(default_factory=dict)
    """Replaces or adds metadata; None leaves an entry out."""
    tokens: list[str] = field(default_factory=lambda: list(TOKENS))
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    """Of the matrices."""

    def write(self, path: Path, *, split_max_tensors: int = 0) -> Path:
        writer = gguf.GGUFWriter(path, "llama", split_max_tensors=split_max_tensors)
        for key, value in (_metadata() | self.metadata).items():
            if value is not None:
                _add_value(writer, key, value)
        writer.add_array("tokenizer.ggml.tokens", self.tokens)
        kinds = [3 if token in SPECIAL else 1 for token in self.tokens]
        writer.add_array("tokenizer.ggml.token_type", kinds)
        for name, values in self.tensors.items():
            self._add_tensor(writer, name, values)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def _add_tensor(self, writer: gguf.GGUFWriter, name: str, values: NDArray[np.float32]) -> None:
        if name.endswith("q_proj.weight"):
            values = _permute(values, HEADS)
        if name.endswith("k_proj.weight"):
            values = _permute(values, KV_HEADS)
        kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else self.quantization
        writer.add_tensor(_gguf_name(name), gguf.quantize(values, kind), raw_dtype=kind)


def make_tiny_model() -> TinyModel:
    random = np.random.default_rng(7)
    shapes = {
        "model.embed_tokens.weight": (len(TOKENS), HIDDEN),
        "model.layers.0.input_layernorm.weight": (HIDDEN,),
        "model.layers.0.self_attn.q_proj.weight": (HEADS * HEAD_DIM, HIDDEN),
        "model.layers.0.self_attn.k_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "model.layers.0.self_attn.v_proj.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
        "model.layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
        "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
        "model.layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
        "model.layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
        "model.norm.weight": (HIDDEN,),
    }
    return TinyModel(
        {name: random.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    )


@pytest.fixture
def tiny_model() -> TinyModel:
    return make_tiny_model()


@pytest.fixture
def tiny_gguf(tiny_model: TinyModel, tmp_path: Path) -> Path:
    return tiny_model.write(tmp_path / "tiny.gguf")


def _metadata() -> dict[str, object]:
    return {
        "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.rope.freq_base": 100000.0,
        "llama.rope.dimension_count": HEAD_DIM,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.merges": ["h e", "Ġ he"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.chat_template": "{{ bos_token }}{{ messages }}",
    }


def _add_value(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    adders: dict[type, Callable[[str, Any], None]] = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    adders[type(value)](key, value)


def _gguf_name(name: str) -> str:
    for old, new in {
        "model.layers": "blk", "model.embed_tokens": "token_embd", "model.norm": "output_norm",
        "lm_head": "output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }.items():  # fmt: skip
        name = name.replace(old, new)
    return name


def _permute(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """What llama.cpp's converter does to q and k."""
    halves = values.reshape(num_heads, 2, values.shape[0] // num_heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
