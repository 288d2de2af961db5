"""Makes a decoder, or a tensor-parallel rank's part of it, from its configuration and a
checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from engine.collectives import Collectives
from engine.config import RankSpec
from engine.layers.greedy_head import GreedyHead
from engine.layers.linear import Linear, WeightLayout, create_linear
from engine.layers.norm import RmsNorm
from engine.layers.rotary import RotaryEmbedding
from engine.layers.row_parallel import RowParallelLinear
from engine.layers.vocabulary import PartialVocabulary, Vocabulary, WholeVocabulary
from engine.loader import Weights
from engine.models.decoder import DecoderLayer, DecoderModel, QueryKeyNorms
from engine.models.model_config import ModelConfig, Shape
from engine.models.output_head import OutputHead
from engine.models.shard import shard_model
from engine.models.tensor_source import HeldTensor, TensorSource
from engine.quantization.layers import Quantization, head_scheme, layer_scheme, rounded

LinearKind = Literal["qkv", "output", "gate_up", "down"]
LAYER_LINEARS: Mapping[LinearKind, tuple[str, ...]] = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
"""The modules of a layer that share their input, and so are one linear layer here."""
_SUMMED: tuple[LinearKind, ...] = ("output", "down")
"""Of these each rank has a part of every output."""

_REDUNDANT_TENSORS = ("rotary_emb.inv_freq", "lm_head.weight")
"""Some exporters write what can be computed, or the head although it is tied."""


class Head(NamedTuple):
    """The layer that gives logits."""

    linear: Linear
    table: Tensor
    """Its weights, for logits in float32 of single tokens."""
    is_exact: bool | None = None
    """As `engine.layers.vocabulary.Vocabulary.is_exact`; None: if they are float32."""
    greedy: GreedyHead | None = None
    """The same layer, if it can choose tokens."""


L = TypeVar("L")
L_co = TypeVar("L_co", covariant=True)


class LinearMaker(Protocol[L_co]):
    """Takes the weights of linear layers."""

    def layer(self, prefix: str, shapes: Mapping[str, Shape], kind: LinearKind) -> L_co:
        """This rank's part of one linear layer of the layer whose tensors begin with ``prefix``."""
        ...

    def head(self, tensor: HeldTensor, table: Tensor) -> Head:
        """The layer that gives logits; ``table`` are its weights as they lie in the checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class ModelParts(Generic[L]):
    """All weights of one model, or of a rank's part of it."""

    config: ModelConfig
    """With the part's sizes."""
    vocabulary: Vocabulary
    rotaries: Sequence[RotaryEmbedding]
    layers: Sequence[DecoderLayer[L]]
    final_norm: RmsNorm

    def create_head(self) -> OutputHead:
        return OutputHead(self.config, vocabulary=self.vocabulary, final_norm=self.final_norm)


def load_model(
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device,
    layout: WeightLayout,
    quantization: Quantization = "none",
    importance: Mapping[str, Tensor] | None = None,
    collectives: Collectives | None = None,
) -> DecoderModel:
    """The whole model, or the part of the rank that ``collectives`` belong to.

    A tensor stored as ``dtype`` and needed whole and as it is stays mapped, others are copied.
    Raises `CheckpointError` unless the tensors are exactly those of ``config``, and
    `EngineConfigError` if it can't be cut in so many parts.
    """
    source = open_source(config, weights, dtype=dtype, device=device, collectives=collectives)
    linears = TorchLinears(source, layout, quantization, importance or {}, collectives)
    parts = load_parts(source, linears, collectives)
    return DecoderModel(
        parts.config,
        vocabulary=parts.vocabulary,
        rotaries=parts.rotaries,
        layers=parts.layers,
        head=parts.create_head(),
    )


def open_source(
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device,
    collectives: Collectives | None,
) -> TensorSource:
    """The tensors of the rank that ``collectives`` belong to."""
    shard = shard_model(config, RankSpec() if collectives is None else collectives.rank)
    return TensorSource(config, shard, weights, dtype, device)


def load_parts(
    source: TensorSource, make: LinearMaker[L], collectives: Collectives | None
) -> ModelParts[L]:
    """Take all tensors of ``source``, and raise `CheckpointError` if any is left over."""
    config = source.config
    prefix = source.find_prefix()
    vocabulary = _load_vocabulary(source, prefix, make, collectives)
    ropes = list(dict.fromkeys(layer.rope for layer in config.layers))
    shapes = config.layer_shapes()
    layers = [
        _load_layer(source, make, f"{prefix}layers.{index}.", shapes, ropes.index(layer.rope))
        for index, layer in enumerate(config.layers)
    ]
    final_norm = source.norm(f"{prefix}norm.weight", (config.hidden_size,))
    source.weights.check_all_taken(
        ignored_suffixes=_REDUNDANT_TENSORS, ignored_prefixes=config.ignored_prefixes
    )
    rotaries = [
        RotaryEmbedding(rope, head_dim=config.head_dim, dtype=source.dtype, device=source.device)
        for rope in ropes
    ]
    return ModelParts(source.shard.local_config(config), vocabulary, rotaries, layers, final_norm)


def _load_vocabulary(
    source: TensorSource, prefix: str, make: LinearMaker[L], collectives: Collectives | None
) -> Vocabulary:
    tensors = source.vocabulary_tensors(prefix)
    embedding = head = source.take(tensors[0], is_kept=True)
    if tensors[1] != tensors[0]:
        head = source.take(tensors[1], is_kept=True)
    made = make.head(tensors[1], head)
    if collectives is None:
        return WholeVocabulary(
            embedding=embedding,
            head=made.table,
            lm_head=made.linear,
            is_exact=made.is_exact,
            greedy_head=made.greedy,
        )
    size = source.shard.rank.size
    shards = [shard_model(source.config, RankSpec(rank, size)) for rank in range(size)]
    return PartialVocabulary(
        embedding=embedding,
        head=made.table,
        lm_head=made.linear,
        is_exact=made.is_exact,
        part=source.shard.vocab,
        widths=[len(shard.vocab) for shard in shards],
        collectives=collectives,
    )


def _load_layer(
    source: TensorSource,
    make: LinearMaker[L],
    prefix: str,
    shapes: Mapping[str, Shape],
    rotary: int,
) -> DecoderLayer[L]:
    def norm(name: str) -> RmsNorm:
        return source.norm(f"{prefix}{name}.weight", shapes[f"{name}.weight"])

    # Gemma calls the norm behind attention what others call the one before the MLP.
    has_output_norms = source.config.has_output_norms
    mlp_norm = "pre_feedforward_layernorm" if has_output_norms else "post_attention_layernorm"
    qk_norms = None
    if source.config.has_qk_norm:
        qk_norms = QueryKeyNorms(norm("self_attn.q_norm"), norm("self_attn.k_norm"))
    return DecoderLayer(
        rotary=rotary,
        input_norm=norm("input_layernorm"),
        qkv=make.layer(prefix, shapes, "qkv"),
        qk_norms=qk_norms,
        attention_output=make.layer(prefix, shapes, "output"),
        attention_output_norm=norm("post_attention_layernorm") if has_output_norms else None,
        mlp_norm=norm(mlp_norm),
        gate_up=make.layer(prefix, shapes, "gate_up"),
        down=make.layer(prefix, shapes, "down"),
        mlp_output_norm=norm("post_feedforward_layernorm") if has_output_norms else None,
    )


@dataclass(frozen=True, slots=True)
class TorchLinears:
    """Layers that torch computes."""

    source: TensorSource
    layout: WeightLayout
    quantization: Quantization
    importance: Mapping[str, Tensor]
    """As `engine.models.calibration.measure_importance` has it, of all ranks' inputs."""
    collectives: Collectives | None

    def layer(self, prefix: str, shapes: Mapping[str, Shape], kind: LinearKind) -> Linear:
        held, held_biases = (
            list(self.source.held(prefix, shapes, [f"{name}.{what}" for name in names]))
            for names in [LAYER_LINEARS[kind]]
            for what in ("weight", "bias")
        )
        weights, biases = self._take(held), self._take(held_biases)
        scheme = layer_scheme(self.quantization, kind, held[0].held_shape[1])
        importance = self.importance.get(prefix + kind)
        if importance is not None:
            importance = held[0].cut_inputs(importance)
        weights = [rounded(weight, scheme, importance) for weight in weights]
        linear = create_linear(weights, biases or None, layout=self.layout)
        if kind in _SUMMED and self.collectives is not None:
            return RowParallelLinear(linear, self.collectives)
        return linear

    def head(self, tensor: HeldTensor, table: Tensor) -> Head:
        scheme = head_scheme(self.quantization, table.shape[1])
        if scheme is not None:
            table = rounded(table, scheme)
            return Head(create_linear([table], layout=self.layout), table)
        # Single tokens' rows are read from the tables, so a packed head is a second copy, and
        # packing one from its mapped pages would add these.
        is_as_it_is = self.layout == "mapped" or not self.source.shard.is_whole
        weight = table if is_as_it_is else self.source.take(tensor)
        return Head(create_linear([weight], layout=self.layout), table)

    def _take(self, tensors: Sequence[HeldTensor]) -> Sequence[Tensor]:
        """One below the other in one, if they are to be packed."""
        if self.layout == "mapped" or len(tensors) < 2:
            return [self.source.take(tensor, is_kept=self.layout == "mapped") for tensor in tensors]
        return [self.source.join(tensors)]
