"""A random model of two layers whose greedy answers are exact. Must not know engines."""

from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from engine.checkpoints.manifest import build_manifest, write_manifest

VOCAB_SIZE = 97
MAX_LEN = 640
_WEIGHT_SCALE = 0.3
"""Weights so large that an answer depends on the whole prompt, and that no two logits are close."""


def write_random_model(folder: Path, *, seed: int = 0) -> Path:
    """A checkpoint of float32 weights in ``folder``, which is made; six heads are shared by one or
    three ranks.
    """
    torch.manual_seed(seed)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=6,
        head_dim=32,
        max_position_embeddings=MAX_LEN,
        initializer_range=_WEIGHT_SCALE,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    folder.mkdir()
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    write_manifest(folder, build_manifest(folder, source="fuzz", source_sha256="", source_stamp=""))
    return folder
