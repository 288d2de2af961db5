"""Which part of a model each tensor-parallel rank holds. Imports no torch.

Attention is cut by heads, the MLP by its inner dimension, embedding and head by the vocabulary;
norms are whole on every rank. When ranks outnumber the KV heads, neighbouring ranks hold the same
one. Source of the scheme: Shoeybi et al., Megatron-LM (2019).
"""

from dataclasses import dataclass, replace

from engine.config import RankSpec
from engine.errors import EngineConfigError
from engine.models.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class ModelShard:
    """Half-open ranges of the whole model's heads, dimensions and token ids."""

    rank: RankSpec
    heads: range
    kv_heads: range
    inner: range
    """Of ``intermediate_size``."""
    vocab: range
    """Of token ids; the last ranks' may be shorter."""

    def local_config(self, config: ModelConfig) -> ModelConfig:
        """``config`` with this rank's sizes; ``vocab_size`` stays that of the whole model."""
        return replace(
            config,
            num_heads=len(self.heads),
            num_kv_heads=len(self.kv_heads),
            intermediate_size=len(self.inner),
        )


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
    ]


def _part(number: int, rank: RankSpec) -> range:
    length = -(-number // rank.size)
    begin = min(number, rank.rank * length)
    return range(begin, min(number, begin + length))


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
