"""Random Llamas of a few thousand parameters: transformers' model, and its checkpoint folder."""

from pathlib import Path

import torch
from transformers import LlamaConfig as HfLlamaConfig
from transformers import LlamaForCausalLM

from engine.checkpoints.manifest import build_manifest, write_manifest

VOCAB_SIZE = 97


def make_reference(
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 8,
    is_tied: bool = True,
    has_bias: bool = False,
    seed: int = 0,
) -> LlamaForCausalLM:
    """A float32 model with weights large enough that its answers depend on the whole prompt."""
    torch.manual_seed(seed)
    config = HfLlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=48,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
        tie_word_embeddings=is_tied,
        attention_bias=has_bias,
        mlp_bias=has_bias,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter, mean=0.5, std=0.3)
    return model


def write_checkpoint(model: LlamaForCausalLM, folder: Path) -> Path:
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
