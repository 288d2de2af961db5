"""A rank's tensors of a checkpoint: by name, in the dtype and on the device of the model.

Must not know what a linear layer makes of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from engine.layers.norm import RmsNorm
from engine.loader import Weights
from engine.models.model_config import ModelConfig, Shape
from engine.models.shard import ModelShard, TensorPart


class HeldTensor(NamedTuple):
    """What this rank holds of one tensor."""

    name: str
    shape: Shape
    """Of the whole tensor."""
    part: TensorPart | None
    """None: all of it."""

    @property
    def held_shape(self) -> Shape:
        return self.shape if self.part is None else self.part.shape_of(self.shape)

    def cut_inputs(self, values: Tensor) -> Tensor:
        """Of ``values``, one for each input of the whole weight, those of what is held."""
        if self.part is None or self.part.dim != 1:
            return values
        return values[self.part.span.start : self.part.span.stop]


@dataclass(frozen=True, slots=True)
class TensorSource:
    """One rank's view of a checkpoint."""

    config: ModelConfig
    """Of the whole model."""
    shard: ModelShard
    weights: Weights
    dtype: torch.dtype
    device: torch.device

    def find_prefix(self) -> str:
        """The spelling that this checkpoint uses; the canonical one if it uses none."""
        prefixes = self.config.name_prefixes
        known = (prefix for prefix in prefixes if f"{prefix}embed_tokens.weight" in self.weights)
        return next(known, prefixes[0])

    def vocabulary_tensors(self, prefix: str) -> tuple[HeldTensor, HeldTensor]:
        """Embedding and head, which may be the same."""
        names = [f"{prefix}embed_tokens.weight", "lm_head.weight"]
        if self.config.has_tied_embeddings:
            del names[1]
        part = self._part(self.shard.vocab_part)
        tensors = [HeldTensor(name, self.config.embedding_shape, part) for name in names]
        return tensors[0], tensors[-1]

    def held(
        self, prefix: str, shapes: Mapping[str, Shape], names: Iterable[str]
    ) -> Iterator[HeldTensor]:
        """Those of ``names``, tensors of a layer, that the model has and this rank holds; the
        others count as taken."""
        for name in names:
            if name not in shapes:
                continue
            if self.shard.holds(name):
                part = self._part(self.shard.layer_part(name, self.config.head_dim))
                yield HeldTensor(f"{prefix}{name}", shapes[name], part)
            else:
                self.weights.skip(f"{prefix}{name}")

    def take(self, tensor: HeldTensor, *, is_kept: bool = False) -> Tensor:
        """``is_kept`` as it is, it may stay mapped."""
        # Parts never do: a process is charged for whole pages, and for more that the kernel may map
        # around them.
        may_map = is_kept and self.shard.is_whole and self.device.type == "cpu"
        mapped_as = self.dtype if may_map else None
        taken = self.weights.take(tensor.name, tensor.shape, tensor.part, mapped_as=mapped_as)
        return taken.to(device=self.device, dtype=self.dtype)

    def join(self, tensors: Sequence[HeldTensor]) -> Tensor:
        """The tensors below each other in one. One at a time: they may be large."""
        num_rows = [tensor.held_shape[0] for tensor in tensors]
        joined = torch.empty(
            (sum(num_rows), *tensors[0].held_shape[1:]), dtype=self.dtype, device=self.device
        )
        for place, tensor in zip(joined.split(num_rows), tensors, strict=True):
            place.copy_(self.take(tensor))
        return joined

    def norm(self, name: str, shape: Shape) -> RmsNorm:
        return RmsNorm(
            self.take(HeldTensor(name, shape, None)),
            eps=self.config.rms_norm_eps,
            offset=self.config.norm_offset,
            dtype=self.dtype,
        )

    def _part(self, part: TensorPart | None) -> TensorPart | None:
        return None if self.shard.is_whole else part
