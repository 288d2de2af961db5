"""Puts the compiled step's model together: packed weights, what else the checkpoint holds, and the
memory of a step."""

from collections.abc import Iterator
from typing import NamedTuple

import torch

from engine.checkpoints.store import Checkpoint
from engine.collectives import Collectives
from engine.config import EngineConfig, RankSpec
from engine.kv_geometry import KvGeometry
from engine.kv_pool import KvPool
from engine.loader import WeightFiles
from engine.models.calibration import measure_importance
from engine.models.loading import ModelParts, load_parts, open_source
from engine.models.model_config import ModelConfig
from engine.models.output_head import OutputHead
from engine.native.library import StepLibrary
from engine.native.model import NativeModel
from engine.native.pack_file import Bytes, PackedWeights, lay_out, open_packed
from engine.native.pack_path import packed_dtype, packed_path
from engine.native.pack_recipe import recipe_digest
from engine.native.panels import PanelLinear, PanelMaker, pack_all, plan_panels, section_sizes
from engine.workspace import max_logit_rows, max_step_tokens

_CPU = torch.device("cpu")


class LoadedModel(NamedTuple):
    """A model without its KV pool."""

    parts: ModelParts[PanelLinear]
    weights: PackedWeights
    head: OutputHead


def load_weights(
    config: EngineConfig,
    model_config: ModelConfig,
    checkpoint: Checkpoint,
    calls: StepLibrary,
    collectives: Collectives | None,
) -> LoadedModel:
    """Map the packed weights, written on first use into the checkpoint's folder.

    Raises as `engine.models.loading.load_model` does.
    """
    source = open_source(
        model_config,
        WeightFiles(checkpoint.weights_paths),
        dtype=torch.bfloat16,
        device=_CPU,
        collectives=collectives,
    )
    planned = plan_panels(source, config.quantization)
    rank = RankSpec() if collectives is None else collectives.rank
    layout = lay_out(
        section_sizes(planned),
        {
            "weights": checkpoint.revision,
            "dtype": packed_dtype(config),
            "rank": rank.rank,
            "of": rank.size,
            "recipe": recipe_digest(),
        },
    )

    def contents() -> Iterator[tuple[str, Bytes]]:
        importance = measure_importance(config.quantization, model_config, checkpoint.weights_paths)
        return pack_all(source, planned, importance)

    weights = open_packed(packed_path(checkpoint.path, config, rank), layout, contents)
    maker = PanelMaker(
        source,
        planned,
        weights,
        calls,
        num_threads=config.num_threads,
        max_rows=max_logit_rows(config),
    )
    parts = load_parts(source, maker, collectives)
    return LoadedModel(parts, weights, parts.create_head())


def create_native_model(
    config: EngineConfig,
    loaded: LoadedModel,
    calls: StepLibrary,
    geometry: KvGeometry,
    kv_pool: KvPool,
    collectives: Collectives | None,
) -> NativeModel:
    """The model over its KV pool, with memory for the largest step of ``config``."""
    return NativeModel(
        calls,
        loaded.parts,
        geometry,
        kv_pool,
        collectives=collectives,
        num_threads=config.num_threads,
        max_num_seqs=config.max_num_seqs,
        max_step_tokens=max_step_tokens(config),
    )
