"""Llama 2, 3 and 3.x, and what was built after them (SmolLM2): the plain decoder."""

from dataclasses import replace

from engine.models.config_reader import ConfigReader
from engine.models.model_config import ModelConfig
from engine.models.plain_decoder import read_plain_decoder


def read_llama(config: ConfigReader) -> ModelConfig:
    """Its biases are all or none."""
    has_attention_bias = config.flag("attention_bias", default=False)
    return replace(
        read_plain_decoder(config, "llama"),
        has_qkv_bias=has_attention_bias,
        has_output_bias=has_attention_bias,
        has_mlp_bias=config.flag("mlp_bias", default=False),
    )
