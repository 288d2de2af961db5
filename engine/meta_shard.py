"""Builds a tensor-parallel rank's part of a model on torch's meta device: the code that loads real
weights, without memory, so that a plan's sizes come from what would be allocated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.config import RankSpec
from engine.kv_geometry import KvGeometry
from engine.kv_pool import KvPool
from engine.loader import MetaWeights
from engine.models.loading import load_model
from engine.models.model_config import ModelConfig

_META = torch.device("meta")


class ShardBytes(NamedTuple):
    """What one rank allocates."""

    weights: int
    kv_pool: int


def measure_shard(
    config: ModelConfig, rank: RankSpec, geometry: KvGeometry, *, num_blocks: int, dtype: str
) -> ShardBytes:
    """``geometry`` is the rank's; ``dtype`` torch's name. Raises `EngineConfigError` if the model
    can't be cut in so many parts."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    weights = MetaWeights(torch_dtype)
    load_model(
        config,
        weights,
        dtype=torch_dtype,
        device=_META,
        layout="mapped",
        collectives=_Alone(rank) if rank.size > 1 else None,
    )
    pool = KvPool(geometry, num_blocks, dtype=torch_dtype, device=_META)
    # All layers are views of one tensor.
    return ShardBytes(weights.num_bytes, pool.layers[0].untyped_storage().nbytes())


@dataclass(frozen=True, slots=True)
class _Alone:
    """A rank whose group isn't there: enough to load, not to compute."""

    rank: RankSpec

    def all_reduce_(self, tensor: Tensor) -> None:
        raise AssertionError("nothing is computed on the meta device")

    def broadcast_(self, tensor: Tensor) -> None:
        raise AssertionError("nothing is computed on the meta device")

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor | None:
        raise AssertionError("nothing is computed on the meta device")

    def close(self) -> None:
        """Nothing is open."""
