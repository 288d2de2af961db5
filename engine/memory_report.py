"""What the memory of a replica's ranks is for, and whether there is enough. Imports no torch."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.config import MIB, EngineConfig, RankSpec
from engine.errors import EngineConfigError
from engine.kv_geometry import KvGeometry
from engine.models.model_config import ModelConfig
from engine.models.shard import ModelShard, shard_model, shard_parameters
from engine.workspace import workspace_bytes

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The three parts of the memory of rank 0; another rank takes at most a row more of embedding
    and head, where the vocabulary can't be cut evenly.
    """

    weight_bytes: int
    private_weight_bytes: int
    """Of them, what this process holds for itself; the rest is mapped, and shared on the node."""
    workspace_bytes: int
    """At most, for the activations and logits of one step."""
    num_blocks: int
    geometry: KvGeometry
    num_ranks: int = 1
    calibration_bytes: int = 0
    """Of a rank, before there are weights or a pool, and gone when they come."""

    @property
    def kv_pool_bytes(self) -> int:
        return self.num_blocks * self.geometry.block_bytes

    @property
    def device_bytes(self) -> int:
        """On an accelerator, where nothing is shared."""
        return self.weight_bytes + self.workspace_bytes + self.kv_pool_bytes

    @property
    def computing_bytes(self) -> int:
        """What all ranks take from the machine's free memory beside the KV pool."""
        return self.num_ranks * (self.private_weight_bytes + self.workspace_bytes)

    def num_full_sequences(self, max_model_len: int) -> int:
        """Sequences of the longest context that the pool holds at once."""
        return self.num_blocks // self.geometry.num_blocks_of(max_model_len)

    def __str__(self) -> str:
        on_ranks = "" if self.num_ranks == 1 else f"on each of {self.num_ranks} ranks: "
        return (
            f"{on_ranks}weights {_megabytes(self.weight_bytes)} | "
            f"workspace {_megabytes(self.workspace_bytes)} | "
            f"KV pool {_megabytes(self.kv_pool_bytes)} "
            f"({self.num_blocks:,} blocks of {self.geometry.block_size_tokens} tokens)"
        )


def report_memory(
    config: EngineConfig,
    hf_config: Mapping[str, Any],
    model: ModelConfig,
    geometry: KvGeometry,
    *,
    num_blocks: int,
    max_request_tokens: int,
    is_compiled: bool = False,
    is_packed_mapped: bool = True,
    is_packed: bool = False,
) -> MemoryReport:
    """Of a replica that isn't loaded yet; ``hf_config`` is the checkpoint's config.json, ``model``
    the whole model, ``geometry`` that of one rank; ``is_compiled``: with the compiled step;
    ``is_packed_mapped``: whose packed weights lie in a file, and with ``is_packed`` do already."""
    shard = shard_model(model, RankSpec(0, config.tensor_parallel_size))
    element = geometry.bytes_per_element
    is_converted = _stored_dtype(hf_config) != config.dtype
    if is_compiled:
        tables = _tables_beside_packed(model, shard, is_converted=is_converted)
        packed = 0 if is_packed_mapped else packed_bytes(config, model, shard)
        num_private_bytes = element * tables + packed
    else:
        num_private_bytes = element * _private_parameters(
            config, model, shard, is_converted=is_converted
        )
    return MemoryReport(
        weight_bytes=shard_parameters(model, shard) * element,
        private_weight_bytes=num_private_bytes,
        workspace_bytes=workspace_bytes(
            config,
            shard.local_config(model),
            max_request_tokens=max_request_tokens,
            bytes_per_element=element,
            is_compiled=is_compiled,
        ),
        num_blocks=num_blocks,
        geometry=geometry,
        num_ranks=config.tensor_parallel_size,
        calibration_bytes=(
            0 if is_compiled and is_packed else _calibration_bytes(config, hf_config, model)
        ),
    )


def _calibration_bytes(
    config: EngineConfig, hf_config: Mapping[str, Any], model: ModelConfig
) -> int:
    """Of the whole model in bfloat16, as `engine.models.calibration` holds it where it can't map
    it."""
    if config.quantization != "int4" or _stored_dtype(hf_config) == "bfloat16":
        return 0
    return 2 * shard_parameters(model, shard_model(model, RankSpec()))


def _private_parameters(
    config: EngineConfig, model: ModelConfig, shard: ModelShard, *, is_converted: bool
) -> int:
    """Those that a rank keeps outside the mapped file."""
    is_quantized = config.quantization != "none"
    is_packed = config.device == "cpu" and (config.weight_layout != "mapped" or is_quantized)
    if is_packed and (is_converted or is_quantized):
        # The head is there twice: packed, and converted or rounded for the rows that are read one
        # by one.
        head = math.prod(shard.vocab_part.shape_of(model.embedding_shape))
        return shard_parameters(model, shard) + head
    if is_packed or is_converted:
        return shard_parameters(model, shard)
    if config.device != "cpu":
        return 0
    parts = (
        (shard.layer_part(name, model.head_dim), shape)
        for name, shape in model.layer_shapes().items()
    )
    # Columns don't lie in one piece in the file, so they are copied.
    columns = (math.prod(part.shape_of(shape)) for part, shape in parts if part and part.dim)
    return 0 if shard.is_whole else model.num_layers * sum(columns)


def _tables_beside_packed(model: ModelConfig, shard: ModelShard, *, is_converted: bool) -> int:
    """Those that a rank of the compiled step keeps for itself: all linear layers are mapped, as are
    embedding and head, unless they are cut or converted."""
    if shard.is_whole and not is_converted:
        return 0
    num_tables = 1 if model.has_tied_embeddings else 2
    return num_tables * math.prod(shard.vocab_part.shape_of(model.embedding_shape))


def packed_bytes(config: EngineConfig, model: ModelConfig, shard: ModelShard) -> int:
    """At most, of what a rank of the compiled step packs: all linear layers and the head."""
    num_packed = shard_parameters(model, shard)
    if not model.has_tied_embeddings:
        num_packed -= math.prod(shard.vocab_part.shape_of(model.embedding_shape))
    if config.quantization == "none":
        return 2 * num_packed
    # A byte each, and scales; 4 bits take less.
    return num_packed + 4 * num_packed // model.hidden_size


def check_memory(config: EngineConfig, memory: MemoryReport, *, available_bytes: int) -> None:
    """Raise `EngineConfigError` for what doesn't fit into ``available_bytes``, before it loads."""
    if config.device != "cpu":
        return
    calibration_bytes = memory.num_ranks * memory.calibration_bytes
    if calibration_bytes > available_bytes:
        raise EngineConfigError(
            f"quantization 'int4' takes {calibration_bytes} bytes for a start, of which "
            f"{available_bytes} are free: free memory, lower tensor_parallel_size, or set "
            "quantization to 'int8'."
        )
    room = available_bytes - memory.computing_bytes
    if config.kv_cache_bytes > room:
        remedy = "free memory, or lower max_model_len or max_num_batched_tokens"
        if room >= MIB:
            remedy = f"set kv_cache_bytes to at most {room // MIB * MIB}"
        raise EngineConfigError(
            f"kv_cache_bytes is {config.kv_cache_bytes}, but of {available_bytes} bytes of free "
            f"memory weights and workspace leave {max(0, room)}: {remedy}."
        )


def check_device_memory(config: EngineConfig, memory: MemoryReport, *, free_bytes: int) -> None:
    """Raise `EngineConfigError` if a rank doesn't fit into what its accelerator has free."""
    if memory.device_bytes <= free_bytes:
        return
    room = (free_bytes - memory.weight_bytes - memory.workspace_bytes) * memory.num_ranks
    remedy = "use more tensor_parallel_size or a larger device, or lower max_num_batched_tokens"
    if room >= MIB:
        remedy = f"set kv_cache_bytes to at most {room // MIB * MIB}"
    raise EngineConfigError(
        f"weights, workspace and KV pool take {memory.device_bytes} bytes of a device, which has "
        f"{free_bytes} free, with kv_cache_bytes {config.kv_cache_bytes}: {remedy}."
    )


def log_memory(config: EngineConfig, memory: MemoryReport, *, max_model_len: int) -> None:
    """One line, and a second one if ``max_num_seqs`` long sequences don't fit at once."""
    logger.info("%s", memory)
    num_full = memory.num_full_sequences(max_model_len)
    if num_full < config.max_num_seqs:
        logger.info(
            "max_num_seqs is %d, but the KV pool holds %d sequences of max_model_len (%d tokens) "
            "at once: when more grow long, some wait or are computed again",
            config.max_num_seqs,
            num_full,
            max_model_len,
        )


def _stored_dtype(hf_config: Mapping[str, Any]) -> object:
    """What config.json says of the weights, which may be nothing."""
    text = hf_config.get("text_config")
    for section in (hf_config, text if isinstance(text, dict) else {}):
        for key in ("dtype", "torch_dtype"):  # transformers 5, and before
            if section.get(key) is not None:
                return section[key]
    return None


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB"
