"""Whether a configuration runs on the compiled step, as far as it shows before anything is
compiled or loaded. Imports no torch."""

from pathlib import Path

from engine.config import EngineConfig, RankSpec
from engine.models.model_config import ModelConfig
from engine.models.shard import shard_model
from engine.native.processor import Processor, this_processor
from engine.native.toolchain import has_compiler

_CACHE_NAME = ".compiled"


def compile_cache(checkpoint: Path) -> Path:
    """The folder of compiled code for all models beside ``checkpoint``."""
    return checkpoint.parent / _CACHE_NAME


def reason_against(
    config: EngineConfig,
    model: ModelConfig,
    cache: Path,
    *,
    processor: Processor | None = None,
    search_path: str | None = None,
) -> str | None:
    """Why the compiled step will not be used; None if it will, unless compiling it fails.

    ``model`` is the whole one.
    """
    return (
        reason_in_config(config)
        or (processor or this_processor()).reason_against()
        or _reason_in_sizes(config, model)
        or _reason_in_toolchain(cache, search_path)
    )


def reason_in_config(config: EngineConfig) -> str | None:
    """What the configuration asks for that only torch does."""
    if config.runner != "torch":
        return f"runner is {config.runner!r}"
    if config.compiled == "never":
        return "compiled is 'never'"
    if config.device != "cpu":
        return f"device is {config.device!r}"
    if config.dtype != "bfloat16":
        return f"dtype is {config.dtype!r}: it computes in bfloat16 alone"
    if config.attention != "auto":
        return f"attention is {config.attention!r}"
    if config.weight_layout != "auto":
        return f"weight_layout is {config.weight_layout!r}"
    return None


def _reason_in_sizes(config: EngineConfig, model: ModelConfig) -> str | None:
    local = shard_model(model, RankSpec(0, config.tensor_parallel_size)).local_config(model)
    odd = {
        "hidden_size": local.hidden_size,
        "intermediate_size of a rank": local.intermediate_size,
        "head_dim": local.head_dim,
    }
    for name, size in odd.items():
        if size % 2:
            return f"{name} is {size}, and inputs are read in pairs"
    return None


def _reason_in_toolchain(cache: Path, search_path: str | None) -> str | None:
    # Whether one of the cache is for this machine shows when it is loaded.
    if has_compiler(search_path) or any(cache.glob("step-*.so")):
        return None
    return "there is no g++ on this machine: install it"
