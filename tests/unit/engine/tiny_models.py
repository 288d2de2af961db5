"""Random models of every family with a few thousand parameters: transformers' model, and its
checkpoint folder."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine.checkpoints.manifest import build_manifest, write_manifest

VOCAB_SIZE = 97
MAX_LEN = 256

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": MAX_LEN,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def make_tiny_model(model_type: str, *, seed: int = 0, **overrides: Any) -> PreTrainedModel:
    """A float32 model with weights large enough that its answers depend on the whole prompt."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **(_SIZES | overrides))
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model


def write_checkpoint(model: PreTrainedModel, folder: Path) -> Path:
    """What ``engine.checkpoints`` would have made of ``model``."""
    folder.mkdir()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    write_checkpoint_manifest(folder)
    return folder


def write_checkpoint_manifest(folder: Path) -> None:
    (folder / "headwater.json").unlink(missing_ok=True)
    manifest = build_manifest(folder, source="test", source_sha256="", source_stamp="")
    write_manifest(folder, manifest)
