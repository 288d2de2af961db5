"""Checkpoints' models over paged pools, by the compiled step or by torch, quantized or not."""

import pytest
import torch
from torch import Tensor

from engine.attention import create_attention
from engine.checkpoints.store import Checkpoint
from engine.config import EngineConfig
from engine.errors import CompiledStepUnavailable
from engine.kv_geometry import KvGeometry
from engine.kv_pool import KvPool
from engine.loader import WeightFiles
from engine.models.calibration import measure_importance
from engine.models.loading import load_model
from engine.models.registry import read_model_config
from engine.native.library import StepLibrary
from engine.native.loading import create_native_model, load_weights
from engine.native.processor import this_processor
from engine.native.selection import library_opener
from engine.native.support import compile_cache
from engine.native.toolchain import find_compiler
from engine.quantization.layers import Quantization
from engine.step_model import StepModel, TorchStepModel
from tests.quickstart import HOME
from tests.unit.engine.paged_model import CPU, Chunk, PagedSteps


def compiled_library() -> StepLibrary:
    """Skips the test where there can be none."""
    reason = this_processor().reason_against()
    if reason is not None:
        pytest.skip(reason)
    try:
        find_compiler()
    except CompiledStepUnavailable as error:
        pytest.skip(str(error))
    return library_opener(compile_cache(HOME / "models" / "any"))()


@torch.inference_mode()
def native_steps(
    checkpoint: Checkpoint,
    calls: StepLibrary,
    token_ids: Tensor,
    quantization: Quantization = "none",
) -> PagedSteps:
    settings = EngineConfig(quantization=quantization)
    loaded = load_weights(settings, read_model_config(checkpoint.config), checkpoint, calls, None)

    def over(geometry: KvGeometry, pool: KvPool) -> StepModel:
        return create_native_model(settings, loaded, calls, geometry, pool, None)

    return PagedSteps(loaded.head, token_ids, over, dtype=torch.bfloat16)


@torch.inference_mode()
def torch_steps(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    token_ids: Tensor,
    quantization: Quantization = "none",
) -> PagedSteps:
    model_config = read_model_config(checkpoint.config)
    model = load_model(
        model_config,
        WeightFiles(checkpoint.weights_paths),
        dtype=dtype,
        device=CPU,
        layout="mapped",
        quantization=quantization,
        importance=measure_importance(quantization, model_config, checkpoint.weights_paths),
    )

    def over(geometry: KvGeometry, pool: KvPool) -> StepModel:
        attention = create_attention("cpu", CPU, geometry, scale=model.config.attention_scale)
        return TorchStepModel(model, attention, geometry, pool.layers, CPU)

    return PagedSteps(model.head, token_ids, over, dtype=dtype)


def logits_of(paged: PagedSteps, *chunks: Chunk) -> Tensor:
    """[num_tokens, vocab_size] in float32, of the tokens of one step."""
    logits = torch.cat([part.float() for part in paged.step(chunks)])
    paged.head.finish_rows()
    return logits
