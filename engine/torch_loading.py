"""Puts a `TorchRunner` together, of the whole model or of one rank's part: device, weights, KV
pool, and what computes the layers."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch

from engine.attention import create_attention
from engine.attention.base import AttentionBackend
from engine.available_memory import available_memory_bytes
from engine.checkpoints.store import Checkpoint
from engine.collectives import Collectives
from engine.config import EngineConfig, RankSpec
from engine.errors import EngineConfigError
from engine.heap import hand_back_freed_memory, keep_freed_memory
from engine.kv_geometry import KvGeometry
from engine.kv_pool import KvPool
from engine.layers.linear import WeightLayout, can_pack, limit_shape_caches
from engine.loader import WeightFiles
from engine.models.calibration import measure_importance
from engine.models.loading import load_model
from engine.models.model_config import ModelConfig
from engine.models.output_head import OutputHead
from engine.models.shard import shard_model
from engine.native.library import PhaseTimes, StepLibrary
from engine.native.loading import create_native_model, load_weights
from engine.native.sampling import NativeSampling
from engine.native.selection import choose_library
from engine.native.support import compile_cache
from engine.probed import ProbedAttention, ProbedCollectives
from engine.row_outputs import FollowedOutputs, RowOutputs, SampledOutputs
from engine.sampling.kernels import SamplingKernels
from engine.sizing import check_without_compiled
from engine.start_stages import StageClock
from engine.step_model import StepModel, TorchStepModel
from engine.step_probe import StepProbe
from engine.torch_runner import TorchRunner

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def load_torch_runner(
    config: EngineConfig,
    model_config: ModelConfig,
    checkpoint: Checkpoint,
    *,
    num_blocks: int,
    max_request_tokens: int,
    collectives: Collectives | None = None,
    probe: StepProbe | None = None,
    stages: StageClock | None = None,
) -> TorchRunner:
    """Load the weights and allocate the pool; sets torch's threads for the whole process.

    Raises `EngineConfigError` if there is no compiled step, and too little memory without.

    With ``collectives`` this process holds the part of their rank. The pool then has as many blocks
    as without, with the KV heads of this rank in each. Steps tell ``probe`` what they do,
    ``stages`` gets what loading took.
    """
    probe, stages = probe or StepProbe(), stages or StageClock()
    if collectives is not None:
        collectives = ProbedCollectives(collectives, probe)
    rank = RankSpec() if collectives is None else collectives.rank
    device = _open_device(config, rank)
    torch.set_num_threads(config.num_threads)
    limit_shape_caches()
    dtype = _DTYPES[config.dtype]
    geometry = (
        shard_model(model_config, rank)
        .local_config(model_config)
        .kv_geometry(block_size_tokens=config.block_size_tokens, bytes_per_element=dtype.itemsize)
    )
    hand_back_freed_memory()
    with torch.inference_mode():
        calls = choose_library(config, model_config, compile_cache(checkpoint.path), collectives)
        stages.end("library")
        if calls is not None:
            probe.phase_times_ns = partial(_phase_times_ns, calls)
            loaded = _load_native(config, model_config, checkpoint, geometry, calls, collectives)
        else:
            if rank.rank == 0:  # for all of them, which begin to load now
                check_without_compiled(config, checkpoint, available_bytes=available_memory_bytes())
            attention = ProbedAttention(
                create_attention(
                    config.attention, device, geometry, scale=model_config.attention_scale
                ),
                probe,
            )
            loaded = _load_torch(
                config, model_config, checkpoint, geometry, device, collectives, attention
            )
        keep_freed_memory()
        stages.end("weights")
        kv_pool = KvPool(geometry, num_blocks, dtype=dtype, device=device)
        stages.end("kv_pool")
        outputs: RowOutputs
        if rank.rank == 0:
            outputs = SampledOutputs(loaded.head, config.max_num_seqs, device, loaded.kernels)
        else:
            outputs = FollowedOutputs(loaded.head, config.max_num_seqs)
        return TorchRunner(
            model=loaded.over(kv_pool),
            geometry=geometry,
            kv_pool=kv_pool,
            outputs=outputs,
            max_num_seqs=config.max_num_seqs,
            max_request_tokens=max_request_tokens,
            is_poisoning=config.debug_poison_freed_blocks,
            rank=rank.rank,
            num_threads=config.num_threads,
            probe=probe,
        )


def _phase_times_ns(calls: StepLibrary) -> dict[str, int]:
    return {name: getattr(calls.times, name) for name, _ in PhaseTimes._fields_}


class _Loaded(NamedTuple):
    """A model before its KV pool is there, which is allocated after all that loading takes."""

    head: OutputHead
    over: Callable[[KvPool], StepModel]
    kernels: SamplingKernels | None = None


def _load_native(
    config: EngineConfig,
    model_config: ModelConfig,
    checkpoint: Checkpoint,
    geometry: KvGeometry,
    calls: StepLibrary,
    collectives: Collectives | None,
) -> _Loaded:
    loaded = load_weights(config, model_config, checkpoint, calls, collectives)

    def over(kv_pool: KvPool) -> StepModel:
        return create_native_model(config, loaded, calls, geometry, kv_pool, collectives)

    kernels = NativeSampling(
        calls,
        vocab_size=loaded.head.config.vocab_size,
        num_threads=config.num_threads,
        max_samples=config.max_num_seqs,
    )
    return _Loaded(loaded.head, over, kernels)


def _load_torch(
    config: EngineConfig,
    model_config: ModelConfig,
    checkpoint: Checkpoint,
    geometry: KvGeometry,
    device: torch.device,
    collectives: Collectives | None,
    attention: AttentionBackend,
) -> _Loaded:
    dtype = _DTYPES[config.dtype]
    model = load_model(
        model_config,
        WeightFiles(checkpoint.weights_paths),
        dtype=dtype,
        device=device,
        layout=_resolve_layout(config, dtype),
        quantization=config.quantization,
        importance=measure_importance(config.quantization, model_config, checkpoint.weights_paths),
        collectives=collectives,
    )

    def over(kv_pool: KvPool) -> StepModel:
        return TorchStepModel(model, attention, geometry, kv_pool.layers, device)

    return _Loaded(model.head, over)


def _open_device(config: EngineConfig, rank: RankSpec) -> torch.device:
    """On CUDA each rank has a device of those that its process sees."""
    if config.device != "cuda":
        return torch.device(config.device)
    if config.quantization != "none":
        raise EngineConfigError(
            f"quantization is {config.quantization!r}, which is for device 'cpu': set it to 'none'."
        )
    if not torch.cuda.is_available():
        raise EngineConfigError(
            "device is 'cuda', but torch finds no CUDA device: set device to 'cpu', or install "
            "a build of torch with CUDA on a machine with a GPU."
        )
    num_devices = torch.cuda.device_count()
    if rank.size > num_devices:
        raise EngineConfigError(
            f"tensor_parallel_size is {rank.size}, but torch finds {num_devices} CUDA devices: "
            "every rank needs one of its own."
        )
    torch.cuda.set_device(rank.rank)
    return torch.device("cuda", rank.rank)


def _resolve_layout(config: EngineConfig, dtype: torch.dtype) -> WeightLayout:
    is_packable = config.device == "cpu" and can_pack(dtype)
    if config.weight_layout == "auto":
        return "packed" if is_packable else "mapped"
    if config.weight_layout == "packed" and not is_packable:
        raise EngineConfigError(
            f"weight_layout 'packed' is not possible with {config.dtype} on this {config.device}: "
            "set weight_layout to 'auto'."
        )
    return config.weight_layout
