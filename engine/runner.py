"""Makes the model runner that the configuration asks for, and says what others must know of it.

torch is imported only for the runner that computes with it, so that a paced replica starts without.
"""

from dataclasses import dataclass
from typing import NamedTuple

import psutil

from engine.checkpoints.store import Checkpoint, open_checkpoint
from engine.config import MIB, EngineConfig, EngineSpec
from engine.errors import EngineConfigError
from engine.models.llama_config import LlamaConfig
from engine.paced_runner import PacedRunner
from engine.step import ModelRunner

_MIN_BLOCKS = 2
"""One block of a prompt and one to grow into."""
_BYTES_PER_ELEMENT = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A runner ready for its first plan, and the facts of its model."""

    runner: ModelRunner
    checkpoint: Checkpoint
    """Tokenizer, chat template and special tokens."""
    num_blocks: int
    """Size of the KV pool."""
    max_model_len: int
    """Context length in tokens, prompt and answer together."""
    vocab_size: int

    @property
    def weights_revision(self) -> str:
        return self.checkpoint.revision

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.checkpoint.eos_token_ids


def create_runner(spec: EngineSpec) -> LoadedRunner:
    """Open the checkpoint, size the KV pool, load the weights.

    Raises `CheckpointError` (missing, corrupt, not the pinned weights, unsupported model) or
    `EngineConfigError` (context, memory or device don't fit), each in one line that says what to
    change.
    """
    checkpoint = open_checkpoint(spec.checkpoint, weights_sha256=spec.weights_sha256)
    config = spec.config
    model_config = LlamaConfig.from_hf(checkpoint.config)
    max_model_len, num_blocks = size_engine(config, checkpoint)
    runner: ModelRunner
    if config.runner == "paced":
        runner = PacedRunner(
            config.paced,
            num_blocks=num_blocks,
            block_size_tokens=config.block_size_tokens,
            vocab_size=model_config.vocab_size,
            eos_token_ids=checkpoint.eos_token_ids,
        )
    else:
        _check_memory(config, checkpoint)
        from engine.torch_loading import load_torch_runner

        runner = load_torch_runner(
            config,
            model_config,
            checkpoint.weights_paths,
            num_blocks=num_blocks,
            max_model_len=max_model_len,
        )
    return LoadedRunner(
        runner=runner,
        checkpoint=checkpoint,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        vocab_size=model_config.vocab_size,
    )


class EngineSize(NamedTuple):
    """How much one engine can hold."""

    max_model_len: int
    num_blocks: int


def size_engine(config: EngineConfig, checkpoint: Checkpoint) -> EngineSize:
    """What ``config`` asks for, held against the model; a paced replica holds what a real one does.

    Raises as `create_runner` does. Loads nothing.
    """
    model_config = LlamaConfig.from_hf(checkpoint.config)
    return EngineSize(
        _resolve_max_model_len(config, model_config), _num_blocks(config, model_config)
    )


def _resolve_max_model_len(config: EngineConfig, model_config: LlamaConfig) -> int:
    own = model_config.max_position_embeddings
    if config.max_model_len is None:
        return own
    if config.max_model_len > own:
        raise EngineConfigError(
            f"max_model_len is {config.max_model_len}, but the model was made for {own} tokens: "
            f"set max_model_len to at most {own}."
        )
    return config.max_model_len


def _num_blocks(config: EngineConfig, model_config: LlamaConfig) -> int:
    geometry = model_config.kv_geometry(
        block_size_tokens=config.block_size_tokens,
        bytes_per_element=_BYTES_PER_ELEMENT[config.dtype],
    )
    num_blocks = config.kv_cache_bytes // geometry.block_bytes
    if num_blocks < _MIN_BLOCKS:
        raise EngineConfigError(
            f"kv_cache_bytes is {config.kv_cache_bytes}, which holds {num_blocks} blocks of "
            f"{geometry.block_bytes} bytes: set kv_cache_bytes to at least "
            f"{_MIN_BLOCKS * geometry.block_bytes}."
        )
    return num_blocks


def _check_memory(config: EngineConfig, checkpoint: Checkpoint) -> None:
    """Refuse a pool that the machine's memory can't hold beside the weights, before anything is
    loaded."""
    if config.device != "cpu":
        return
    available = psutil.virtual_memory().available
    room = available - _private_weight_bytes(config, checkpoint)
    if config.kv_cache_bytes > room:
        remedy = (
            f"set kv_cache_bytes to at most {room // MIB * MIB}" if room >= MIB else "free memory"
        )
        raise EngineConfigError(
            f"kv_cache_bytes is {config.kv_cache_bytes}, but of {available} bytes of free memory "
            f"the weights leave {max(0, room)}: {remedy}."
        )


def _private_weight_bytes(config: EngineConfig, checkpoint: Checkpoint) -> int:
    """Weights in memory of this process; mapped bfloat16 files cost none. They are stored in 2
    bytes each."""
    if config.weight_layout == "mapped" and config.dtype == "bfloat16":
        return 0
    stored_bytes = sum(path.stat().st_size for path in checkpoint.weights_paths)
    return stored_bytes * _BYTES_PER_ELEMENT[config.dtype] // _BYTES_PER_ELEMENT["bfloat16"]
