"""What of a model lies on each device under tensor parallelism, and how many requests fit: for
`headwater models inspect --tp`.

Weights and KV pool are those that a rank's part of the model has on torch's meta device; the
workspace is the engine's own estimate for its step. Must not know how a plan is printed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.config import EngineConfig, RankSpec
from engine.errors import EngineConfigError
from engine.kv_geometry import KvGeometry
from engine.models.model_config import ModelConfig
from engine.models.shard import possible_sizes, shard_model, shard_parameters
from engine.workspace import workspace_bytes


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What is asked for."""

    tensor_parallel_size: int = 1
    gpu: str | None = None
    device_bytes: int | None = None
    """Of each device; None: nothing is held against it."""
    usable_share: float = 0.9
    kv_bytes: int | None = None
    """For KV on all devices together; None: what a device has left."""
    max_num_seqs: int = 512
    max_num_batched_tokens: int = 8192


@dataclass(frozen=True, slots=True)
class PlannedFit:
    """How many requests of one length run at once."""

    context_tokens: int
    request_kv_bytes: int
    """On all devices together."""
    num_requests: int
    limit: str
    """What allows no more: ``memory`` or ``max_num_seqs``."""


@dataclass(frozen=True, slots=True)
class DevicePlan:
    """Bytes are of one device where nothing else is said."""

    tensor_parallel_size: int
    gpu: str | None
    device_bytes: int | None
    usable_bytes: int | None
    weight_bytes: int
    workspace_bytes: int
    kv_pool_bytes: int
    all_kv_pool_bytes: int
    max_num_seqs: int
    max_num_batched_tokens: int
    longest_context_tokens: int
    missing_bytes: int
    """By which a device is too small; 0 if all fits."""
    sizes_that_fit: list[int]
    """Tensor parallel sizes at which one request of the longest context fits."""
    fits: list[PlannedFit]


def plan_devices(
    model: ModelConfig, contexts: Sequence[int], options: PlanOptions, *, dtype: str
) -> DevicePlan:
    """For an engine whose `max_model_len` is the longest of ``contexts``.

    Raises `EngineConfigError` for a size that the model can't be cut in, or a context beyond it.
    """
    longest = max(contexts)
    if longest > model.max_context_len:
        raise EngineConfigError(
            f"--context {longest}: the model was made for {model.max_context_len} tokens, so ask "
            "for at most that."
        )
    part = _Part.of(model, options, options.tensor_parallel_size, longest, dtype)
    size, usable = options.tensor_parallel_size, _usable_bytes(options)
    missing = 0 if usable is None else max(0, part.needed_bytes(options) - usable)
    kv_bytes = part.kv_bytes(options) if missing == 0 else 0
    num_blocks = kv_bytes // part.geometry.block_bytes
    # torch is imported only to build: everything that can be wrong has been said by now.
    from engine.meta_shard import measure_shard

    built = measure_shard(
        model, RankSpec(0, size), part.geometry, num_blocks=num_blocks, dtype=dtype
    )
    sizes = [] if usable is None else _sizes_that_fit(model, options, longest, dtype)
    return DevicePlan(
        tensor_parallel_size=size,
        gpu=options.gpu,
        device_bytes=options.device_bytes,
        usable_bytes=usable,
        weight_bytes=built.weights,
        workspace_bytes=part.workspace_bytes,
        kv_pool_bytes=built.kv_pool,
        all_kv_pool_bytes=size * built.kv_pool,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        longest_context_tokens=longest,
        missing_bytes=missing,
        sizes_that_fit=sizes,
        fits=[_fit(part, context, num_blocks, options) for context in contexts],
    )


@dataclass(frozen=True, slots=True)
class _Part:
    """What one rank needs, from shapes alone."""

    size: int
    weight_bytes: int
    workspace_bytes: int
    geometry: KvGeometry
    longest: int

    @classmethod
    def of(
        cls, model: ModelConfig, options: PlanOptions, size: int, longest: int, dtype: str
    ) -> "_Part":
        engine = EngineConfig(
            device="cuda",
            dtype="float32" if dtype == "float32" else "bfloat16",
            tensor_parallel_size=size,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
        )
        element = 4 if engine.dtype == "float32" else 2
        shard = shard_model(model, RankSpec(0, size))
        local = shard.local_config(model)
        return cls(
            size=size,
            weight_bytes=shard_parameters(model, shard) * element,
            workspace_bytes=workspace_bytes(
                engine, local, max_request_tokens=longest, bytes_per_element=element
            ),
            geometry=local.kv_geometry(
                block_size_tokens=engine.block_size_tokens, bytes_per_element=element
            ),
            longest=longest,
        )

    def needed_bytes(self, options: PlanOptions) -> int:
        """With the KV that is asked for, else with that of one request."""
        if options.kv_bytes is not None:
            kv_bytes = options.kv_bytes // self.size
        else:
            kv_bytes = self.geometry.num_blocks_of(self.longest) * self.geometry.block_bytes
        return self.weight_bytes + self.workspace_bytes + kv_bytes

    def kv_bytes(self, options: PlanOptions) -> int:
        if options.kv_bytes is not None:
            return options.kv_bytes // self.size
        usable = _usable_bytes(options)
        return 0 if usable is None else usable - self.weight_bytes - self.workspace_bytes


def _usable_bytes(options: PlanOptions) -> int | None:
    if options.device_bytes is None:
        return None
    return int(options.device_bytes * options.usable_share)


def _sizes_that_fit(
    model: ModelConfig, options: PlanOptions, longest: int, dtype: str
) -> list[int]:
    usable = _usable_bytes(options)
    assert usable is not None, "without a device everything fits"
    return [
        size
        for size in possible_sizes(model)
        if _Part.of(model, options, size, longest, dtype).needed_bytes(options) <= usable
    ]


def _fit(part: _Part, context: int, num_blocks: int, options: PlanOptions) -> PlannedFit:
    blocks_of_one = part.geometry.num_blocks_of(context)
    by_memory = num_blocks // blocks_of_one
    is_bound = by_memory <= options.max_num_seqs
    return PlannedFit(
        context_tokens=context,
        request_kv_bytes=blocks_of_one * part.geometry.block_bytes * part.size,
        num_requests=min(by_memory, options.max_num_seqs),
        limit="memory" if is_bound else "max_num_seqs",
    )
