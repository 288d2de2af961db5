"""Mistral: the plain decoder, in its first version with one sliding window for all layers."""

from engine.models.config_reader import ConfigReader
from engine.models.model_config import ModelConfig
from engine.models.plain_decoder import read_plain_decoder, with_windows

_DEFAULT_WINDOW = 4096


def read_mistral(config: ConfigReader) -> ModelConfig:
    """A window of null is none; ``layer_types`` has no meaning here, as in transformers."""
    model = read_plain_decoder(config, "mistral")
    window = config.optional_size("sliding_window", _DEFAULT_WINDOW)
    return with_windows(model, [window] * model.num_layers)
