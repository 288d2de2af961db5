"""Gemma 3, its text part: scaled embeddings, norms around every block, mostly sliding windows.

Layers with a window turn heads by a base of their own, and no scaling. A checkpoint that sees
images, too, is served without its vision tower.
"""

from dataclasses import replace
from typing import Any

from engine.models.config_reader import MAX_LAYERS, ConfigReader
from engine.models.model_config import LayerConfig, ModelConfig
from engine.models.plain_decoder import read_plain_decoder, read_windows, with_windows
from engine.models.rope import RopeConfig, read_rope_section

_DEFAULTS: dict[str, Any] = {
    # Published checkpoints leave out what transformers has as default.
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131072,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_DEFAULT_PATTERN = 6
_THETA_FULL, _THETA_SLIDING = 1e6, 1e4
_ROPE_KEYS = ("rope_scaling", "rope_parameters")
_VISION_PREFIXES = (
    "vision_tower.",
    "multi_modal_projector.",
    "model.vision_tower.",
    "model.multi_modal_projector.",
)


def read_gemma3_text(config: ConfigReader) -> ModelConfig:
    config = config.with_defaults(_DEFAULTS)
    config.choice("hidden_activation", "gelu_pytorch_tanh", known=("gelu_pytorch_tanh",))
    config.refuse("attn_logit_softcapping", "is not supported, and no Gemma 3 has it")
    config.refuse("use_bidirectional_attention", "is not supported: it makes an embedding model")
    # The activation above and the rotary embeddings below stand under keys of Gemma's own.
    base = read_plain_decoder(config.without("hidden_act", *_ROPE_KEYS), "gemma3_text")
    has_bias = config.flag("attention_bias", default=False)
    model = replace(
        base,
        layers=_read_layers(config, base),
        attention_scale=config.number("query_pre_attn_scalar") ** -0.5,
        activation="gelu_tanh",
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_qk_norm=True,
        has_output_norms=True,
        norm_offset=1.0,
        embedding_scale=base.hidden_size**0.5,
        final_logit_softcap=config.optional_number("final_logit_softcapping"),
    )
    return with_windows(model, [layer.window for layer in model.layers])


def read_gemma3(config: ConfigReader) -> ModelConfig:
    """The text part of a checkpoint that sees images, too; its names have two spellings."""
    return replace(
        read_gemma3_text(config.section("text_config")),
        architecture="gemma3",
        name_prefixes=("model.language_model.", "language_model.model."),
        ignored_prefixes=_VISION_PREFIXES,
    )


def _read_layers(config: ConfigReader, base: ModelConfig) -> tuple[LayerConfig, ...]:
    pattern = config.size("sliding_window_pattern", _DEFAULT_PATTERN, maximum=MAX_LAYERS)
    kinds = [
        "sliding_attention" if (index + 1) % pattern else "full_attention"
        for index in range(base.num_layers)
    ]
    windows = read_windows(config, config.size("sliding_window"), kinds)
    full, sliding = _read_ropes(config, base.head_dim)
    return tuple(LayerConfig(full if window is None else sliding, window) for window in windows)


def _read_ropes(config: ConfigReader, head_dim: int) -> tuple[RopeConfig, RopeConfig]:
    """Of layers without and with a window. A scaling in the older spelling is the first's alone."""
    nested = config.section("rope_parameters")
    full = nested.section("full_attention")
    if config.has("rope_scaling"):
        full = config.section("rope_scaling")
    sections = (
        (full, config.number("rope_theta", _THETA_FULL, above=1.0)),
        (
            nested.section("sliding_attention"),
            config.number("rope_local_base_freq", _THETA_SLIDING, above=1.0),
        ),
    )
    full_rope, sliding_rope = (
        read_rope_section(config, section, head_dim=head_dim, default_theta=theta)
        for section, theta in sections
    )
    return full_rope, sliding_rope
