"""Holds what the configuration asks for against the model: context, KV blocks, memory. Imports no
torch, and loads nothing.

With several tensor-parallel ranks all have as many blocks, each with the KV of its heads in them;
heads that ranks share are there for each. What is told here of one rank is rank 0's.
"""

from pathlib import Path
from typing import NamedTuple

from engine.checkpoints.store import Checkpoint
from engine.config import EngineConfig, RankSpec
from engine.errors import EngineConfigError
from engine.kv_geometry import KvGeometry
from engine.memory_report import MemoryReport, check_memory, packed_bytes, report_memory
from engine.models.model_config import ModelConfig
from engine.models.registry import read_model_config
from engine.models.shard import shard_model
from engine.native.pack_path import can_map, packed_path
from engine.native.support import compile_cache, reason_against
from engine.request_limits import max_request_tokens

_BYTES_PER_ELEMENT = {"bfloat16": 2, "float32": 4}


def estimate_memory(
    config: EngineConfig, checkpoint: Checkpoint, *, may_compile: bool = True
) -> MemoryReport:
    """What a rank that computes takes, as it checks at its start; without ``may_compile`` torch
    runs the layers in any case. Loads nothing."""
    model_config = read_model_config(checkpoint.config)
    size = size_engine(config, checkpoint)
    paths = _packed_paths(config, checkpoint)
    return report_memory(
        config,
        checkpoint.config,
        model_config,
        engine_geometry(config, model_config),
        num_blocks=size.num_blocks,
        max_request_tokens=size.max_request_tokens,
        is_compiled=may_compile and reason_against_compiled(config, checkpoint) is None,
        is_packed_mapped=can_map(paths, _packed_bytes(config, model_config)),
        is_packed=all(path.is_file() for path in paths),
    )


def check_without_compiled(
    config: EngineConfig, checkpoint: Checkpoint, *, available_bytes: int
) -> None:
    """Hold what torch needs against what is free, where the compiled step was reckoned with and
    can't be had. Raises `EngineConfigError`."""
    if reason_against_compiled(config, checkpoint) is None:
        memory = estimate_memory(config, checkpoint, may_compile=False)
        check_memory(config, memory, available_bytes=available_bytes)


def _packed_paths(config: EngineConfig, checkpoint: Checkpoint) -> list[Path]:
    size = config.tensor_parallel_size
    return [packed_path(checkpoint.path, config, RankSpec(rank, size)) for rank in range(size)]


def _packed_bytes(config: EngineConfig, model_config: ModelConfig) -> int:
    shard = shard_model(model_config, RankSpec(0, config.tensor_parallel_size))
    return packed_bytes(config, model_config, shard)


def reason_against_compiled(config: EngineConfig, checkpoint: Checkpoint) -> str | None:
    """Why torch will run the layers; None if the compiled step will, unless compiling it fails."""
    cache = compile_cache(checkpoint.path)
    return reason_against(config, read_model_config(checkpoint.config), cache)


class EngineSize(NamedTuple):
    """How much one engine, all its ranks together, can hold."""

    max_model_len: int
    num_blocks: int
    max_request_tokens: int
    """Most tokens of one sequence: ``max_model_len``, or less if the KV pool is small."""


def size_engine(config: EngineConfig, checkpoint: Checkpoint) -> EngineSize:
    """What ``config`` asks for, held against the model; a paced replica holds what a real one does.

    Raises `EngineConfigError`, also if the model can't be cut in so many ranks.
    """
    model_config = read_model_config(checkpoint.config)
    geometry = engine_geometry(config, model_config)
    max_model_len = _resolve_max_model_len(config, model_config)
    num_blocks = _num_blocks(config, geometry)
    return EngineSize(
        max_model_len=max_model_len,
        num_blocks=num_blocks,
        max_request_tokens=max_request_tokens(
            geometry, num_blocks=num_blocks, max_model_len=max_model_len
        ),
    )


def engine_geometry(config: EngineConfig, model_config: ModelConfig) -> KvGeometry:
    """Of one rank's part of the KV. Raises `EngineConfigError` if there can't be so many."""
    shard = shard_model(model_config, RankSpec(0, config.tensor_parallel_size))
    return shard.local_config(model_config).kv_geometry(
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
    num_ranks = config.tensor_parallel_size
    num_blocks = config.kv_cache_bytes // num_ranks // geometry.block_bytes
    # One block of a prompt and one to grow into, in every KV group.
    min_blocks = 2 * len(geometry.groups)
    if num_blocks < min_blocks:
        on_ranks = "" if num_ranks == 1 else f" on each of {num_ranks} ranks"
        raise EngineConfigError(
            f"kv_cache_bytes is {config.kv_cache_bytes}, which holds {num_blocks} blocks of "
            f"{geometry.block_bytes} bytes{on_ranks}: set kv_cache_bytes to at least "
            f"{min_blocks * geometry.block_bytes * num_ranks}."
        )
    return num_blocks
