"""How much each input of a layer counts, for rounding its weights: one pass over made-up tokens.

Some inputs are a hundred times as large as others wherever a model is in use, so random tokens show
them nearly as well as text does, and no tokenizer or data set is needed. Must not know how weights
are rounded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.attention.reference import attend_one
from engine.layers.linear import Linear
from engine.loader import WeightFiles
from engine.models.decoder import DecoderModel
from engine.models.loading import Head, LinearKind, TorchLinears, load_parts, open_source
from engine.models.model_config import ModelConfig, Shape
from engine.models.tensor_source import HeldTensor
from engine.quantization.layers import Quantization

NUM_TOKENS = 512
SEED = 0


@torch.inference_mode()
def measure_importance(
    quantization: Quantization, config: ModelConfig, weights_paths: Sequence[Path]
) -> Mapping[str, Tensor]:
    """[in_features] in float32, the mean square of each input, by the name of the layer and the
    kind of linear layer; nothing where ``quantization`` has no use for it.

    Of the whole model, whose weights are read once more for it: mapped, or converted to bfloat16
    in memory of this process, which is free again at the end. Every rank does that by itself, if
    its weights aren't packed yet, which the others don't know: `engine.memory_report` counts all.
    """
    if quantization != "int4":
        return {}
    source = open_source(
        config,
        WeightFiles(weights_paths),
        dtype=torch.bfloat16,
        device=torch.device("cpu"),
        collectives=None,
    )
    maker = _RecordingLinears(TorchLinears(source, "mapped", "none", {}, None))
    parts = load_parts(source, maker, None)
    model = DecoderModel(
        parts.config,
        vocabulary=parts.vocabulary,
        rotaries=parts.rotaries,
        layers=parts.layers,
        head=parts.create_head(),
    )
    generator = torch.Generator().manual_seed(SEED)
    token_ids = torch.randint(config.vocab_size, (NUM_TOKENS,), generator=generator)
    model.forward(
        token_ids,
        torch.arange(NUM_TOKENS),
        [torch.empty(0)] * config.num_layers,
        [_WholePrompt(config.attention_scale)] * config.num_layers,
    )
    return {name: linear.mean_square for name, linear in maker.made.items()}


class _RecordingLinear:
    """Keeps the mean square of the inputs of its last call."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear
        self.mean_square = torch.empty(0)

    def __call__(self, x: Tensor) -> Tensor:
        self.mean_square = x.float().square().mean(dim=0)
        return self._linear(x)


@dataclass(frozen=True, slots=True)
class _RecordingLinears:
    """A ``LinearMaker``."""

    plain: TorchLinears
    made: dict[str, _RecordingLinear] = field(default_factory=dict)

    def layer(self, prefix: str, shapes: Mapping[str, Shape], kind: LinearKind) -> Linear:
        linear = _RecordingLinear(self.plain.layer(prefix, shapes, kind))
        self.made[f"{prefix}{kind}"] = linear
        return linear

    def head(self, tensor: HeldTensor, table: Tensor) -> Head:
        return self.plain.head(tensor, table)


@dataclass(frozen=True, slots=True)
class _WholePrompt:
    """Attention of one sequence from its start, which needs no pool."""

    scale: float

    def __call__(self, query: Tensor, new_kv: Tensor, kv: Tensor) -> Tensor:
        return attend_one(query, new_kv[:, 0], new_kv[:, 1], scale=self.scale).flatten(1)
