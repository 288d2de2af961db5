"""Which part of a model each tensor-parallel rank holds. Imports no torch.

Attention is cut by heads, the MLP by its inner dimension, embedding and head by the vocabulary;
norms are whole on every rank. When ranks outnumber the KV heads, neighbouring ranks hold the same
one. Source of the scheme: Shoeybi et al., Megatron-LM (arXiv:1909.08053).
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from engine.config import RankSpec
from engine.errors import EngineConfigError
from engine.models.model_config import ModelConfig, Shape


class TensorPart(NamedTuple):
    """A half-open range of one dimension of a tensor."""

    dim: int
    span: range

    def shape_of(self, whole: Shape) -> Shape:
        return (*whole[: self.dim], len(self.span), *whole[self.dim + 1 :])


_SUMMED = ("self_attn.o_proj", "mlp.down_proj")
"""Their inputs are cut, so every rank has a part of each output, and the sum of all is meant."""


@dataclass(frozen=True, slots=True)
class ModelShard:
    """Half-open ranges of the whole model's heads, dimensions and token ids."""

    rank: RankSpec
    heads: range
    kv_heads: range
    inner: range
    """Of ``intermediate_size``."""
    vocab: range
    """Of token ids; they differ in length by one at most."""

    def local_config(self, config: ModelConfig) -> ModelConfig:
        """``config`` with this rank's sizes; ``vocab_size`` stays that of the whole model."""
        return replace(
            config,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.inner),
        )

    @property
    def is_whole(self) -> bool:
        return self.rank.size == 1

    def layer_part(self, name: str, head_dim: int) -> TensorPart | None:
        """What this rank holds of a layer's tensor, by its name there; None: all of it."""
        module, _, kind = name.rpartition(".")
        match module:
            case "self_attn.q_proj":
                return TensorPart(0, _scaled(self.heads, head_dim))
            case "self_attn.k_proj" | "self_attn.v_proj":
                return TensorPart(0, _scaled(self.kv_heads, head_dim))
            case "mlp.gate_proj" | "mlp.up_proj":
                return TensorPart(0, self.inner)
            case "self_attn.o_proj" if kind == "weight":
                return TensorPart(1, _scaled(self.heads, head_dim))
            case "mlp.down_proj" if kind == "weight":
                return TensorPart(1, self.inner)
        return None

    def holds(self, name: str) -> bool:
        """Whether this rank has a layer's tensor: what is added to a sum, it is added once."""
        module, _, kind = name.rpartition(".")
        return kind != "bias" or module not in _SUMMED or self.rank.rank == 0

    @property
    def vocab_part(self) -> TensorPart:
        """Of the embedding and the head."""
        return TensorPart(0, self.vocab)


def shard_parameters(config: ModelConfig, shard: ModelShard) -> int:
    """Parameters that ``shard`` holds, exactly; tied embeddings count once."""
    in_layer = 0
    for name, shape in config.layer_shapes().items():
        if shard.holds(name):
            part = shard.layer_part(name, config.head_dim)
            in_layer += math.prod(shape if part is None else part.shape_of(shape))
    num_vocabularies = 1 if config.has_tied_embeddings else 2
    vocabulary = math.prod(shard.vocab_part.shape_of(config.embedding_shape))
    norm = config.hidden_size
    return config.num_layers * in_layer + num_vocabularies * vocabulary + norm


def shard_model(config: ModelConfig, rank: RankSpec) -> ModelShard:
    """The part of ``rank``. Raises `EngineConfigError` if the model can't be cut in so many."""
    size = rank.size
    for name, number in (
        ("attention heads", config.num_heads),
        ("MLP dimensions", config.intermediate_size),
    ):
        if number % size:
            raise _cannot_cut(config, size, f"{number} {name}")
    num_kv_heads = config.num_kv_heads
    if num_kv_heads % size and size % num_kv_heads:
        raise _cannot_cut(config, size, f"{num_kv_heads} heads of keys and values")
    if config.vocab_size < size:
        raise _cannot_cut(config, size, f"{config.vocab_size} tokens of the vocabulary")
    return ModelShard(
        rank,
        heads=_part(config.num_heads, rank),
        kv_heads=_kv_part(num_kv_heads, rank),
        inner=_part(config.intermediate_size, rank),
        vocab=_part(config.vocab_size, rank),
    )


def possible_sizes(config: ModelConfig, maximum: int = 64) -> list[int]:
    """The numbers of ranks, up to ``maximum``, that ``shard_model`` accepts."""
    return [
        size
        for size in range(1, maximum + 1)
        if config.num_heads % size == 0
        and config.intermediate_size % size == 0
        and (config.num_kv_heads % size == 0 or size % config.num_kv_heads == 0)
        and config.vocab_size >= size
    ]


def _part(number: int, rank: RankSpec) -> range:
    begin, end = (number * index // rank.size for index in (rank.rank, rank.rank + 1))
    return range(begin, end)


def _scaled(indices: range, length: int) -> range:
    """The elements of ``indices`` that are ``length`` long each."""
    return range(indices.start * length, indices.stop * length)


def _kv_part(num_kv_heads: int, rank: RankSpec) -> range:
    if rank.size <= num_kv_heads:
        return _part(num_kv_heads, rank)
    head = rank.rank * num_kv_heads // rank.size
    return range(head, head + 1)


def _cannot_cut(config: ModelConfig, size: int, what: str) -> EngineConfigError:
    sizes = ", ".join(map(str, possible_sizes(config)))
    return EngineConfigError(
        f"tensor_parallel_size is {size}, but {what} can't be shared by so many ranks: set it to "
        f"one of {sizes}."
    )
