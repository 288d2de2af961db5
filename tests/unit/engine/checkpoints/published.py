"""A model of a few kilobytes as its makers would publish it: a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TEMPLATE = "{{ bos_token }}{{ messages }}"


def publish(folder: Path, *, num_shards: int = 1, shard_bytes: int = 4096) -> Path:
    """Write the folder; a changed file is then the test's business."""
    folder.mkdir(parents=True)
    write_json(folder / "config.json", CONFIG)
    write_json(folder / "generation_config.json", {"eos_token_id": 2, "temperature": 0.6})
    write_json(
        folder / "tokenizer_config.json",
        {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE},
    )
    words = {"<s>": 1, "</s>": 2, "<unk>": 0, "hello": 3}
    Tokenizer(WordLevel(words, unk_token="<unk>")).save(str(folder / "tokenizer.json"))
    random = np.random.default_rng(0)
    names = [f"model-{shard + 1:05}-of-{num_shards:05}.safetensors" for shard in range(num_shards)]
    if num_shards == 1:
        names = ["model.safetensors"]
    for shard, name in enumerate(names):
        values = random.integers(0, 256, shard_bytes, np.uint8)
        save_file({f"weight.{shard}": values}, folder / name)
    if num_shards > 1:
        weight_map = {f"weight.{shard}": name for shard, name in enumerate(names)}
        write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    return folder


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), "utf-8")


def edit_json(path: Path, **changes: object) -> None:
    """Set keys; None removes one."""
    content = {**json.loads(path.read_text("utf-8")), **changes}
    write_json(path, {key: value for key, value in content.items() if value is not None})
