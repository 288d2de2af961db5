"""Reads what all families share: a decoder with full attention, SwiGLU and one RoPE.

A family takes this and replaces what differs. Imports no torch.
"""

from collections.abc import Sequence
from dataclasses import replace

from engine.errors import CheckpointError
from engine.models.config_reader import MAX_LAYERS, ConfigReader
from engine.models.model_config import LayerConfig, ModelConfig
from engine.models.rope import read_rope

_FULL, _SLIDING = LAYER_TYPES = ("full_attention", "sliding_attention")
_MIN_WINDOW = 2
"""With less, no token would see another one, and every prefix would count as cached."""


def read_plain_decoder(config: ConfigReader, architecture: str) -> ModelConfig:
    """Sizes, rotary embedding and tying; raises `CheckpointError` for what is wrong or unknown."""
    config.refuse("quantization_config", "is not supported: the weights must not be quantized")
    config.choice("hidden_act", "silu", known=("silu",))
    hidden_size = config.size("hidden_size")
    num_heads = config.size("num_attention_heads")
    num_kv_heads = config.size("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise config.error(
            "num_key_value_heads", f"is {num_kv_heads}, which {num_heads} heads can't share"
        )
    head_dim = config.size("head_dim", max(1, hidden_size // num_heads))
    if head_dim % 2:
        raise config.error("head_dim", f"is {head_dim}, but RoPE turns pairs of dimensions")
    max_position_embeddings = config.size("max_position_embeddings")
    rope = read_rope(config, head_dim=head_dim)
    num_layers = config.size("num_hidden_layers", maximum=MAX_LAYERS)
    return ModelConfig(
        architecture=architecture,
        vocab_size=config.size("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.size("intermediate_size"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position_embeddings,
        max_context_len=rope.max_context_len(max_position_embeddings),
        layers=(LayerConfig(rope),) * num_layers,
        rms_norm_eps=config.number("rms_norm_eps", 1e-6, at_most=1.0),
        attention_scale=head_dim**-0.5,
        has_tied_embeddings=config.flag("tie_word_embeddings", default=False),
    )


def read_windows(
    config: ConfigReader, window: int | None, default_types: Sequence[str]
) -> list[int | None]:
    """Each layer's window, by ``layer_types`` or else ``default_types``."""
    types = config.words("layer_types", len(default_types), known=LAYER_TYPES)
    windows = [window if kind == _SLIDING else None for kind in types or default_types]
    if types and window is None and _SLIDING in types:
        raise config.error("sliding_window", "is missing, but layer_types asks for one")
    return windows


def with_windows(model: ModelConfig, windows: Sequence[int | None]) -> ModelConfig:
    """A window as long as the longest context is none; one of the token alone has no model."""
    if any(window is not None and window < _MIN_WINDOW for window in windows):
        raise CheckpointError(f"config.json: sliding_window must be at least {_MIN_WINDOW}.")
    layers = [
        replace(layer, window=None if window and window >= model.max_context_len else window)
        for layer, window in zip(model.layers, windows, strict=True)
    ]
    return replace(model, layers=tuple(layers))
