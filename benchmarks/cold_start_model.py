"""A checkpoint that looks like a Llama model of a wanted size, with random weights.

Written as fast as the disk takes it, without torch: several safetensors files, their index, and all
that opening one needs. Must not know what is measured with it.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from benchmarks.object_store import BUCKET
from engine.checkpoints.layout import INDEX_NAME
from engine.checkpoints.manifest import Manifest, build_manifest, write_manifest

SOURCE = f"s3://{BUCKET}/model"
"""Where the checkpoint says that it comes from, so that a copy of it on a disk is one of that."""
_ELEMENT_BYTES = 2
_PATTERN_BYTES = 16 * 1024**2 + 13
"""Odd: the same bytes never stand at the same place of two chunks."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a Llama model whose embeddings are tied."""

    hidden: int
    intermediate: int
    num_layers: int
    vocab: int
    num_shards: int

    def tensors(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """In the order of the layers."""
        yield "model.embed_tokens.weight", (self.vocab, self.hidden)
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.input_layernorm.weight", (self.hidden,)
            for name, rows in (("q", 1), ("k", 4), ("v", 4), ("o", 1)):
                shape = (self.hidden // rows, self.hidden)
                yield f"{prefix}.self_attn.{name}_proj.weight", shape
            yield f"{prefix}.post_attention_layernorm.weight", (self.hidden,)
            yield f"{prefix}.mlp.gate_proj.weight", (self.intermediate, self.hidden)
            yield f"{prefix}.mlp.up_proj.weight", (self.intermediate, self.hidden)
            yield f"{prefix}.mlp.down_proj.weight", (self.hidden, self.intermediate)
        yield "model.norm.weight", (self.hidden,)


LARGE = Shape(2048, 8192, num_layers=32, vocab=32_000, num_shards=8)
"""4.0 GB."""
MIDDLE = Shape(2048, 8192, num_layers=1, vocab=32_000, num_shards=2)
"""253 MB."""
SMALL = Shape(512, 2048, num_layers=3, vocab=8192, num_shards=3)
"""30 MB in files of more than one chunk."""


def write_checkpoint(folder: Path, shape: Shape, *, seed: int = 0) -> Manifest:
    """Into ``folder``, which is made. Its manifest stands there, too."""
    folder.mkdir(parents=True)
    _write_description(folder, shape)
    pattern = random.Random(seed).randbytes(_PATTERN_BYTES)
    tensors = list(shape.tensors())
    sizes = [math.prod(dimensions) * _ELEMENT_BYTES for _, dimensions in tensors]
    per_shard = sum(sizes) / shape.num_shards
    shards: list[list[tuple[str, tuple[int, ...]]]] = [[] for _ in range(shape.num_shards)]
    begin = 0
    for tensor, num_bytes in zip(tensors, sizes, strict=True):
        shards[int((begin + num_bytes / 2) / per_shard)].append(tensor)
        begin += num_bytes
    weight_map: dict[str, str] = {}
    for index, shard in enumerate(shards):
        name = f"model-{index + 1:05}-of-{shape.num_shards:05}.safetensors"
        _write_shard(folder / name, shard, pattern, index)
        weight_map |= dict.fromkeys((tensor for tensor, _ in shard), name)
    (folder / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))
    manifest = build_manifest(folder, source=SOURCE, source_sha256="", source_stamp="")
    write_manifest(folder, manifest)
    return manifest


def num_bytes_of(manifest: Manifest) -> int:
    """Of all files."""
    return sum(entry.bytes for entry in manifest.files.values())


def _write_description(folder: Path, shape: Shape) -> None:
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    unknown = "<unk>"
    tokenizer = Tokenizer(WordLevel({unknown: 0}, unk_token=unknown))
    tokenizer.save(str(folder / "tokenizer.json"))


def _write_shard(
    path: Path, tensors: list[tuple[str, tuple[int, ...]]], pattern: bytes, index: int
) -> None:
    header = {}
    end = 0
    for name, shape in tensors:
        begin, end = end, end + math.prod(shape) * _ELEMENT_BYTES
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        skip = index * 4097  # files differ from their first byte on
        while end > 0:
            end -= file.write(memoryview(pattern)[skip : skip + end])
            skip = 0
