"""Qwen 2 and 2.5: the plain decoder with biases of queries, keys and values."""

from dataclasses import replace

from engine.models.config_reader import ConfigReader
from engine.models.model_config import ModelConfig
from engine.models.plain_decoder import read_plain_decoder, read_windows, with_windows

_DEFAULT_WINDOW = 4096
_DEFAULT_MAX_WINDOW_LAYERS = 28


def read_qwen2(config: ConfigReader) -> ModelConfig:
    model = replace(read_plain_decoder(config, "qwen2"), has_qkv_bias=True)
    return with_windows(model, read_qwen_windows(config, model.num_layers))


def read_qwen_windows(config: ConfigReader, num_layers: int) -> list[int | None]:
    """``max_window_layers`` is, against its name, the number of first layers *without* a window."""
    window = None
    if config.flag("use_sliding_window", default=False):
        window = config.optional_size("sliding_window", _DEFAULT_WINDOW)
    if window is None and not config.has("layer_types"):
        return [None] * num_layers
    num_full = config.count("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS)
    kinds = ["full_attention" if i < num_full else "sliding_attention" for i in range(num_layers)]
    return read_windows(config, window, kinds)
