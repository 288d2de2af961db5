"""The families that the engine runs, by ``model_type``. Imports no torch."""

from collections.abc import Callable, Mapping
from typing import Any

from engine.errors import CheckpointError
from engine.models.config_reader import ConfigReader
from engine.models.gemma3 import read_gemma3, read_gemma3_text
from engine.models.llama import read_llama
from engine.models.mistral import read_mistral
from engine.models.model_config import ModelConfig
from engine.models.qwen2 import read_qwen2
from engine.models.qwen3 import read_qwen3

_FAMILIES: Mapping[str, Callable[[ConfigReader], ModelConfig]] = {
    "gemma3": read_gemma3,
    "gemma3_text": read_gemma3_text,
    "llama": read_llama,
    "mistral": read_mistral,
    "qwen2": read_qwen2,
    "qwen3": read_qwen3,
}


def read_model_config(config: Mapping[str, Any]) -> ModelConfig:
    """What a Hugging Face config.json describes.

    Raises `CheckpointError`, which names the key, for what is missing, makes no sense or is not
    implemented.
    """
    model_type = config.get("model_type")
    read = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if read is None:
        raise CheckpointError(
            f"config.json: model_type {str(model_type)[:60]!r} is not supported, only "
            f"{', '.join(sorted(_FAMILIES))}."
        )
    return read(ConfigReader(config))
