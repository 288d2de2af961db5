"""Converts a llama-family GGUF file into a checkpoint folder.

Weights are dequantized to bfloat16, one tensor at a time; torch is not needed.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from engine.checkpoints.errors import CorruptCheckpoint, UnsupportedCheckpoint
from engine.checkpoints.gguf_config import llama_config
from engine.checkpoints.gguf_file import GgufFile
from engine.checkpoints.gguf_tokenizer import write_tokenizer
from engine.checkpoints.safetensors_file import TensorSpec, write_bfloat16


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where a Hugging Face tensor comes from."""

    gguf_name: str
    spec: TensorSpec
    num_rotary_heads: int = 0
    """Heads whose rows GGUF interleaves for its own rotary embedding; 0 for other tensors."""


def convert_gguf(path: Path, folder: Path) -> None:
    """Write the checkpoint's files into ``folder``.

    Raises `CorruptCheckpoint` for a damaged file, `UnsupportedCheckpoint` for a model that isn't a
    plain Llama.
    """
    file = GgufFile.open(path)
    config = llama_config(file)
    origins = _origins(config)
    _check_tensors(file, origins)
    _write_json(folder / "config.json", config)
    generation = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    _write_json(folder / "generation_config.json", generation)
    write_tokenizer(file, folder, context_len=config["max_position_embeddings"])
    _write_weights(file, folder / "model.safetensors", origins)


def unpermute_rotary(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo llama.cpp's reordering of q and k rows: from pairs (0, 1), (2, 3)... per head to halves.

    The inverse of ``permute`` in llama.cpp's convert_hf_to_gguf.py. Shape [num_heads * head_dim,
    hidden_size].
    """
    rows, columns = values.shape
    pairs = values.reshape(num_heads, rows // num_heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _origins(config: dict[str, Any]) -> list[_Origin]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    num_heads, num_kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    q_rows, kv_rows = num_heads * config["head_dim"], num_kv_heads * config["head_dim"]
    # GGUF name, Hugging Face name, shape, rotary heads
    layer_tensors: list[tuple[str, str, tuple[int, ...], int]] = [
        ("attn_norm", "input_layernorm", (hidden,), 0),
        ("attn_q", "self_attn.q_proj", (q_rows, hidden), num_heads),
        ("attn_k", "self_attn.k_proj", (kv_rows, hidden), num_kv_heads),
        ("attn_v", "self_attn.v_proj", (kv_rows, hidden), 0),
        ("attn_output", "self_attn.o_proj", (hidden, q_rows), 0),
        ("ffn_norm", "post_attention_layernorm", (hidden,), 0),
        ("ffn_gate", "mlp.gate_proj", (inner, hidden), 0),
        ("ffn_up", "mlp.up_proj", (inner, hidden), 0),
        ("ffn_down", "mlp.down_proj", (hidden, inner), 0),
    ]
    embedding_shape = (config["vocab_size"], hidden)
    origins = [
        _Origin("token_embd.weight", TensorSpec("model.embed_tokens.weight", embedding_shape))
    ]
    for layer in range(config["num_hidden_layers"]):
        for gguf_name, name, shape, num_rotary_heads in layer_tensors:
            spec = TensorSpec(f"model.layers.{layer}.{name}.weight", shape)
            origins.append(_Origin(f"blk.{layer}.{gguf_name}.weight", spec, num_rotary_heads))
    origins.append(_Origin("output_norm.weight", TensorSpec("model.norm.weight", (hidden,))))
    if not config["tie_word_embeddings"]:
        origins.append(_Origin("output.weight", TensorSpec("lm_head.weight", embedding_shape)))
    return origins


def _check_tensors(file: GgufFile, origins: list[_Origin]) -> None:
    for origin in origins:
        tensor = file.tensors.get(origin.gguf_name)
        if tensor is None or tensor.shape != origin.spec.shape:
            found = "no tensor" if tensor is None else f"a tensor of shape {tensor.shape}"
            raise CorruptCheckpoint(
                f"{file.path} holds {found} {origin.gguf_name!r} where its metadata calls for "
                f"shape {origin.spec.shape}. Download the file again."
            )
    unknown = file.tensors.keys() - {origin.gguf_name for origin in origins}
    if unknown:
        raise UnsupportedCheckpoint(
            f"{file.path} holds tensors that a Llama model does not have: "
            f"{', '.join(sorted(unknown)[:3])}."
        )


def _write_weights(file: GgufFile, path: Path, origins: list[_Origin]) -> None:
    by_name = {origin.spec.name: origin for origin in origins}
    with tqdm(total=len(origins), desc="Converting", unit="tensor", disable=None) as progress:

        def read(spec: TensorSpec) -> NDArray[np.float32]:
            origin = by_name[spec.name]
            values = file.read(file.tensors[origin.gguf_name])
            progress.update()
            if origin.num_rotary_heads:
                return unpermute_rotary(values, origin.num_rotary_heads)
            return values

        write_bfloat16(path, [origin.spec for origin in origins], read)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")
