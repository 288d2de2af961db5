"""Puts a `TorchRunner` together: device, weights, KV pool, attention back end."""

from collections.abc import Sequence
from pathlib import Path

import torch

from engine.attention import create_attention
from engine.config import EngineConfig
from engine.errors import EngineConfigError
from engine.heap import keep_freed_memory
from engine.kv_pool import KvPool
from engine.layers.linear import WeightLayout, can_pack, limit_shape_caches
from engine.loader import WeightFiles
from engine.models.loading import load_model
from engine.models.model_config import ModelConfig
from engine.torch_runner import TorchRunner

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def load_torch_runner(
    config: EngineConfig,
    model_config: ModelConfig,
    weights_paths: Sequence[Path],
    *,
    num_blocks: int,
    max_request_tokens: int,
) -> TorchRunner:
    """Load the weights and allocate the pool; sets torch's threads for the whole process."""
    device = _open_device(config)
    torch.set_num_threads(config.num_threads)
    limit_shape_caches()
    dtype = _DTYPES[config.dtype]
    geometry = model_config.kv_geometry(
        block_size_tokens=config.block_size_tokens, bytes_per_element=dtype.itemsize
    )
    attention = create_attention(
        config.attention, device, geometry, scale=model_config.attention_scale
    )
    with torch.inference_mode():
        model = load_model(
            model_config,
            WeightFiles(weights_paths),
            dtype=dtype,
            device=device,
            layout=_resolve_layout(config, dtype),
        )
        keep_freed_memory()  # only now: what loading frees shall go back
        kv_pool = KvPool(geometry, num_blocks, dtype=dtype, device=device)
        return TorchRunner(
            model=model,
            geometry=geometry,
            kv_pool=kv_pool,
            attention=attention,
            device=device,
            max_num_seqs=config.max_num_seqs,
            max_request_tokens=max_request_tokens,
            is_poisoning=config.debug_poison_freed_blocks,
        )


def _open_device(config: EngineConfig) -> torch.device:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise EngineConfigError(
            "device is 'cuda', but torch finds no CUDA device: set device to 'cpu', or install "
            "a build of torch with CUDA on a machine with a GPU."
        )
    return torch.device(config.device)


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
