"""Makes the model runner that the configuration asks for, and says what others must know of it.

torch is imported only for the runner that computes with it, so that a paced replica starts without.
"""

from dataclasses import dataclass
from typing import NamedTuple

from engine.available_memory import available_memory_bytes
from engine.checkpoints.store import Checkpoint, open_checkpoint
from engine.config import EngineConfig, EngineSpec
from engine.errors import EngineConfigError
from engine.kv_geometry import KvGeometry
from engine.memory_report import MemoryReport, check_memory, log_memory, report_memory
from engine.models.model_config import ModelConfig
from engine.models.registry import read_model_config
from engine.paced_runner import PacedRunner
from engine.request_limits import max_request_tokens
from engine.step import ModelRunner

_BYTES_PER_ELEMENT = {"bfloat16": 2, "float32": 4}


@dataclass(frozen=True, slots=True)
class LoadedRunner:
    """A runner ready for its first plan, and the facts of its model."""

    runner: ModelRunner
    checkpoint: Checkpoint
    """Tokenizer, chat template and special tokens."""
    geometry: KvGeometry
    num_blocks: int
    """Size of the KV pool."""
    max_model_len: int
    """Context length in tokens, prompt and answer together."""
    vocab_size: int
    memory: MemoryReport | None
    """None for a runner that holds no model."""

    @property
    def weights_revision(self) -> str:
        return self.checkpoint.revision

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.checkpoint.eos_token_ids


def create_runner(spec: EngineSpec) -> LoadedRunner:
    """Open the checkpoint, size the KV pool, load the weights, log what the memory is for.

    Raises `CheckpointError` (missing, corrupt, not the pinned weights, unsupported model) or
    `EngineConfigError` (context, memory or device don't fit), each in one line that says what to
    change.
    """
    checkpoint = open_checkpoint(spec.checkpoint, weights_sha256=spec.weights_sha256)
    config = spec.config
    model_config = read_model_config(checkpoint.config)
    geometry = _geometry(config, model_config)
    size = size_engine(config, checkpoint)
    memory = None
    runner: ModelRunner
    if config.runner == "paced":
        runner = PacedRunner(
            config.paced,
            num_blocks=size.num_blocks,
            block_size_tokens=config.block_size_tokens,
            vocab_size=model_config.vocab_size,
            eos_token_ids=checkpoint.eos_token_ids,
            windows=[group.window for group in geometry.groups],
        )
    else:
        memory = estimate_memory(config, checkpoint)
        check_memory(config, memory, available_bytes=available_memory_bytes())
        from engine.torch_loading import load_torch_runner

        runner = load_torch_runner(
            config,
            model_config,
            checkpoint.weights_paths,
            num_blocks=size.num_blocks,
            max_request_tokens=size.max_request_tokens,
        )
        log_memory(config, memory, max_model_len=size.max_model_len)
    return LoadedRunner(
        runner=runner,
        checkpoint=checkpoint,
        geometry=geometry,
        num_blocks=size.num_blocks,
        max_model_len=size.max_model_len,
        vocab_size=model_config.vocab_size,
        memory=memory,
    )


def estimate_memory(config: EngineConfig, checkpoint: Checkpoint) -> MemoryReport:
    """What a replica that computes takes, as `create_runner` checks it. Loads nothing."""
    model_config = read_model_config(checkpoint.config)
    size = size_engine(config, checkpoint)
    return report_memory(
        config,
        checkpoint.config,
        model_config,
        _geometry(config, model_config),
        num_blocks=size.num_blocks,
        max_request_tokens=size.max_request_tokens,
    )


class EngineSize(NamedTuple):
    """How much one engine can hold."""

    max_model_len: int
    num_blocks: int
    max_request_tokens: int
    """Most tokens of one sequence: ``max_model_len``, or less if the KV pool is small."""


def size_engine(config: EngineConfig, checkpoint: Checkpoint) -> EngineSize:
    """What ``config`` asks for, held against the model; a paced replica holds what a real one does.

    Raises as `create_runner` does. Loads nothing.
    """
    model_config = read_model_config(checkpoint.config)
    geometry = _geometry(config, model_config)
    max_model_len = _resolve_max_model_len(config, model_config)
    num_blocks = _num_blocks(config, geometry)
    return EngineSize(
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        max_request_tokens=max_request_tokens(
            geometry, num_blocks=num_blocks, max_model_len=max_model_len
        ),
    )


def _geometry(config: EngineConfig, model_config: ModelConfig) -> KvGeometry:
    return model_config.kv_geometry(
        block_size_tokens=config.block_size_tokens,
        bytes_per_element=_BYTES_PER_ELEMENT[config.dtype],
    )


def _resolve_max_model_len(config: EngineConfig, model_config: ModelConfig) -> int:
    own = model_config.max_context_len
    if config.max_model_len is None:
        return own
    if config.max_model_len > own:
        raise EngineConfigError(
            f"max_model_len is {config.max_model_len}, but the model was made for {own} tokens: "
            f"set max_model_len to at most {own}."
        )
    return config.max_model_len


def _num_blocks(config: EngineConfig, geometry: KvGeometry) -> int:
    num_blocks = config.kv_cache_bytes // geometry.block_bytes
    # One block of a prompt and one to grow into, in every KV group.
    min_blocks = 2 * len(geometry.groups)
    if num_blocks < min_blocks:
        raise EngineConfigError(
            f"kv_cache_bytes is {config.kv_cache_bytes}, which holds {num_blocks} blocks of "
            f"{geometry.block_bytes} bytes: set kv_cache_bytes to at least "
            f"{min_blocks * geometry.block_bytes}."
        )
    return num_blocks
