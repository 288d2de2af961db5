"""Qwen 3, dense: the plain decoder with normed queries and keys."""

from dataclasses import replace

from engine.models.config_reader import ConfigReader
from engine.models.model_config import ModelConfig
from engine.models.plain_decoder import read_plain_decoder, with_windows
from engine.models.qwen2 import read_qwen_windows

_DEFAULTS = {"head_dim": 128}


def read_qwen3(config: ConfigReader) -> ModelConfig:
    config = config.with_defaults(_DEFAULTS)
    has_bias = config.flag("attention_bias", default=False)
    model = replace(
        read_plain_decoder(config, "qwen3"),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_qk_norm=True,
    )
    return with_windows(model, read_qwen_windows(config, model.num_layers))
