"""Makes a decoder, or a tensor-parallel rank's part of it, from its configuration and a
checkpoint."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.collectives import Collectives
from engine.config import RankSpec
from engine.layers.linear import Linear, WeightLayout, create_linear
from engine.layers.norm import RmsNorm
from engine.layers.rotary import RotaryEmbedding
from engine.layers.row_parallel import RowParallelLinear
from engine.layers.vocabulary import PartialVocabulary, Vocabulary, WholeVocabulary
from engine.loader import Weights
from engine.models.decoder import DecoderLayer, DecoderModel, QueryKeyNorms
from engine.models.model_config import ModelConfig, Shape
from engine.models.shard import ModelShard, TensorPart, shard_model

_REDUNDANT_TENSORS = ("rotary_emb.inv_freq", "lm_head.weight")
"""Some exporters write what can be computed, or the head although it is tied."""


def load_model(
    config: ModelConfig,
    weights: Weights,
    *,
    dtype: torch.dtype,
    device: torch.device,
    layout: WeightLayout,
    collectives: Collectives | None = None,
) -> DecoderModel:
    """The whole model, or the part of the rank that ``collectives`` belong to.

    A tensor stored as ``dtype`` and needed whole and as it is stays mapped, others are copied.
    Raises `CheckpointError` unless the tensors are exactly those of ``config``, and
    `EngineConfigError` if it can't be cut in so many parts.
    """
    shard = shard_model(config, RankSpec() if collectives is None else collectives.rank)
    source = _TensorSource(config, shard, weights, dtype, device, layout, collectives)
    prefix = source.find_prefix()
    vocabulary = source.vocabulary(prefix)
    ropes = list(dict.fromkeys(layer.rope for layer in config.layers))
    shapes = config.layer_shapes()
    layers = [
        source.layer(f"{prefix}layers.{index}.", shapes, rotary=ropes.index(layer.rope))
        for index, layer in enumerate(config.layers)
    ]
    final_norm = source.norm(f"{prefix}norm.weight", (config.hidden_size,))
    weights.check_all_taken(
        ignored_suffixes=_REDUNDANT_TENSORS, ignored_prefixes=config.ignored_prefixes
    )
    return DecoderModel(
        shard.local_config(config),
        vocabulary=vocabulary,
        rotaries=[
            RotaryEmbedding(rope, head_dim=config.head_dim, dtype=dtype, device=device)
            for rope in ropes
        ],
        layers=layers,
        final_norm=final_norm,
    )


@dataclass(frozen=True, slots=True)
class _TensorSource:
    config: ModelConfig
    """Of the whole model."""
    shard: ModelShard
    weights: Weights
    dtype: torch.dtype
    device: torch.device
    layout: WeightLayout
    collectives: Collectives | None

    def find_prefix(self) -> str:
        """The spelling that this checkpoint uses; the canonical one if it uses none."""
        prefixes = self.config.name_prefixes
        known = (prefix for prefix in prefixes if f"{prefix}embed_tokens.weight" in self.weights)
        return next(known, prefixes[0])

    def vocabulary(self, prefix: str) -> Vocabulary:
        names = [f"{prefix}embed_tokens.weight", "lm_head.weight"]
        if self.config.has_tied_embeddings:
            del names[1]
        shape, part = self.config.embedding_shape, self._part(self.shard.vocab_part)
        tables = [self.take(name, shape, part, is_kept=True) for name in names]
        embedding, head = tables[0], tables[-1]
        # Single tokens' rows are read from the tables, so a packed head is a second copy, and
        # packing one from its mapped pages would add these.
        is_as_it_is = self.layout == "mapped" or not self.shard.is_whole
        to_pack = head if is_as_it_is else self.take(names[-1], shape, part)
        lm_head = create_linear([to_pack], layout=self.layout)
        if self.collectives is None:
            return WholeVocabulary(embedding=embedding, head=head, lm_head=lm_head)
        size = self.shard.rank.size
        shards = [shard_model(self.config, RankSpec(rank, size)) for rank in range(size)]
        return PartialVocabulary(
            embedding=embedding,
            head=head,
            lm_head=lm_head,
            part=self.shard.vocab,
            widths=[len(shard.vocab) for shard in shards],
            collectives=self.collectives,
        )

    def take(
        self, name: str, shape: Shape, part: TensorPart | None = None, *, is_kept: bool = False
    ) -> Tensor:
        """In the model's dtype on its device; ``is_kept`` as it is, it may stay mapped."""
        # Parts never do: a process is charged for whole pages, and for more that the kernel may map
        # around them.
        may_map = is_kept and self.shard.is_whole and self.device.type == "cpu"
        mapped_as = self.dtype if may_map else None
        tensor = self.weights.take(name, shape, part, mapped_as=mapped_as)
        return tensor.to(device=self.device, dtype=self.dtype)

    def norm(self, name: str, shape: Shape) -> RmsNorm:
        return RmsNorm(
            self.take(name, shape),
            eps=self.config.rms_norm_eps,
            offset=self.config.norm_offset,
            dtype=self.dtype,
        )

    def layer(self, prefix: str, shapes: Mapping[str, Shape], *, rotary: int) -> DecoderLayer:
        def norm(name: str) -> RmsNorm:
            return self.norm(f"{prefix}{name}.weight", shapes[f"{name}.weight"])

        def fused(*names: str) -> Linear:
            return self._fused(prefix, shapes, names)

        def summed(name: str) -> Linear:
            linear = self._fused(prefix, shapes, [name])
            return (
                linear if self.collectives is None else RowParallelLinear(linear, self.collectives)
            )

        # Gemma calls the norm behind attention what others call the one before the MLP.
        has_output_norms = self.config.has_output_norms
        mlp_norm = "pre_feedforward_layernorm" if has_output_norms else "post_attention_layernorm"
        qk_norms = None
        if self.config.has_qk_norm:
            qk_norms = QueryKeyNorms(norm("self_attn.q_norm"), norm("self_attn.k_norm"))
        return DecoderLayer(
            rotary=rotary,
            input_norm=norm("input_layernorm"),
            qkv=fused("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            qk_norms=qk_norms,
            attention_output=summed("self_attn.o_proj"),
            attention_output_norm=norm("post_attention_layernorm") if has_output_norms else None,
            mlp_norm=norm(mlp_norm),
            gate_up=fused("mlp.gate_proj", "mlp.up_proj"),
            down=summed("mlp.down_proj"),
            mlp_output_norm=norm("post_feedforward_layernorm") if has_output_norms else None,
        )

    def _fused(self, prefix: str, shapes: Mapping[str, Shape], names: Sequence[str]) -> Linear:
        """One layer of several tensors with the same input, this rank's part of each."""
        weights, biases = (
            self._parts(prefix, shapes, [f"{module}.{kind}" for module in names])
            for kind in ("weight", "bias")
        )
        return create_linear(weights, biases or None, layout=self.layout)

    def _parts(
        self, prefix: str, shapes: Mapping[str, Shape], names: Sequence[str]
    ) -> Sequence[Tensor]:
        """What this rank holds of those among the tensors of a layer that the model has; one below
        the other in one, if they are to be packed."""
        parts: dict[str, TensorPart | None] = {}
        for name in names:
            if name not in shapes:
                continue
            if self.shard.holds(name):
                parts[name] = self._part(self.shard.layer_part(name, self.config.head_dim))
            else:
                self.weights.skip(f"{prefix}{name}")
        is_kept = self.layout == "mapped"
        held = (
            self.take(f"{prefix}{name}", shapes[name], part, is_kept=is_kept)
            for name, part in parts.items()
        )
        if self.layout == "mapped" or len(parts) < 2:
            return list(held)
        part_shapes = [
            shapes[name] if part is None else part.shape_of(shapes[name])
            for name, part in parts.items()
        ]
        return [self._join(held, part_shapes)]

    def _join(self, parts: Iterable[Tensor], shapes: Sequence[Shape]) -> Tensor:
        """The parts, of these shapes, below each other. One at a time: they may be large."""
        num_rows = [shape[0] for shape in shapes]
        joined = torch.empty((sum(num_rows), *shapes[0][1:]), dtype=self.dtype, device=self.device)
        for place, part in zip(joined.split(num_rows), parts, strict=True):
            place.copy_(part)
        return joined

    def _part(self, part: TensorPart | None) -> TensorPart | None:
        return None if self.shard.is_whole else part
